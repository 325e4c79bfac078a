#!/bin/sh
# Lists the commits of a range as Markdown, grouped by what their subjects promise.
#
#   collect-changes.sh FROM [TO]       TO defaults to HEAD
set -eu
[ $# -ge 1 ] || { echo "usage: collect-changes.sh FROM [TO]" >&2; exit 2; }
from=$1 to=${2:-HEAD}
git rev-parse --verify --quiet "$from^{commit}" >/dev/null || { echo "no such version: $from" >&2; exit 1; }
git rev-parse --verify --quiet "$to^{commit}" >/dev/null || { echo "no such version: $to" >&2; exit 1; }

breaking=$(git log --format=%h --extended-regexp --grep='^BREAKING[ -]CHANGE:' "$from..$to" | tr '\n' ' ')
git log --no-merges --reverse --format='%h %s' "$from..$to" |
awk -v breaking=" $breaking" '
  function put(group) { lines[group] = lines[group] "- " subject " (" $1 ")\n" }
  {
    subject = substr($0, length($1) + 2)
    s = tolower(subject)
    if (index(breaking, " " $1 " ") || s ~ /^[a-z]+(\([^)]*\))?!:/ || s ~ /breaking/) put("Breaking")
    else if (s ~ /^(feat|add|support|allow|introduce|new)/) put("New")
    else if (s ~ /^(fix|bugfix|correct|repair|prevent|handle|avoid)/) put("Fixed")
    else if (s ~ /^(remove|drop|delete|deprecate)/) put("Removed")
    else if (s ~ /^(chore|ci|build|test|tests|style|refactor|bump|release)/) put("Probably internal")
    else put("Unsorted")
  }
  END {
    n = split("Breaking,New,Fixed,Removed,Unsorted,Probably internal", order, ",")
    for (i = 1; i <= n; i++) if (order[i] in lines) printf "## %s\n\n%s\n", order[i], lines[order[i]]
    printf "%d commits\n", NR
  }'

#!/usr/bin/env python3
"""Lets an agent's shell run what a mounted skill says only if `mount-skills gate` agrees.

A hook that runs before a tool, for Claude Code, Codex, Gemini CLI and goose: the call comes as JSON on
stdin; exit code 0 says nothing, 2 forbids the call with the reason on stderr.

- A command that names nothing in a mount is none of its business.
- A command that only reads (READERS) may name anything there.
- Any other command needs the consent of each skill it names. Whatever it is about the mount that cannot be
  understood is forbidden.

It reads a command line and runs nothing of it. Who wants around it gets around it (a copy in two steps):
it keeps an agent to what was agreed, and is no sandbox.
"""

import glob
import json
import os
import re
import shlex
import subprocess
import sys

READERS = set(
    "[ base64 cat cd cmp cut diff echo egrep fgrep file find grep head jq ls md5sum nl printf pwd "
    "realpath rg sha256sum stat tail test tr tree true uniq wc".split()
)
KEYWORDS = set("! do done elif else fi if then until while { }".split())
# Options by which a reader runs something.
RUNS = re.compile(r"-(exec|execdir|ok|okdir)|--pre(=.*)?")
LOOKING = {"diff", "gate", "list", "show", "status"}


def forbid(reason):
    print(reason, file=sys.stderr)
    sys.exit(2)


def mounts():
    """Where skills are mounted. The kernel knows, also when no daemon answers."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as rows:
        rows = [row.split(" ") for row in rows if " - fuse.mount-skills " in row]
    return [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), row[4]) for row in rows]


def commands(line):
    """The simple commands of a line, as words. None: it cannot be taken apart."""
    line = line.replace("\\\n", " ").replace("\n", " ; ")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    found = [[]]
    try:
        for word in lexer:
            if set(word) <= set(";&|()"):
                found.append([])
            else:
                found[-1].append(word)
    except ValueError:
        return None
    return [words for words in found if words]


def only_reads(words):
    while words and words[0] in KEYWORDS:
        words = words[1:]
    if not words or words[0] == "for":
        return True
    place, name = os.path.split(words[0])
    if place not in ("", "/bin", "/usr/bin"):
        return False
    if name == "sed":
        plain = len(words) > 2 and words[1] == "-n" and re.fullmatch(r"\d+(,(\d+|\$))?p", words[2])
        return bool(plain) and not any(word.startswith("-") for word in words[3:])
    if name == "mount-skills":
        return len(words) > 1 and words[1] in LOOKING
    return name in READERS and not any(RUNS.fullmatch(word) for word in words)


def alternatives(word):
    """What a shell makes of braces."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", word)
    if not found or word.count("{") > 6:
        return [word]
    parts = found[1].split(",")
    return [w for part in parts for w in alternatives(word[: found.start()] + part + word[found.end() :])]


def named(line, parsed, cwd, roots):
    """What of the mounts a line names, or stands in."""
    def place(word, base):
        word = os.path.expandvars(os.path.expanduser(word))
        path = os.path.realpath(os.path.join(base, word))
        inside = any(path == root or path.startswith(root + "/") for root in roots)
        # A word that is no path is one only where a file has its name.
        return path if inside and (os.path.isabs(word) or os.path.lexists(path)) else None

    bases = [cwd] + [os.path.join(cwd, os.path.expandvars(os.path.expanduser(words[1])))
                     for words in parsed if words[0] in ("cd", "pushd") and len(words) > 1]
    found = {place(".", base) for base in bases}
    # Words, and what is within words: --file=PATH, sh -c '…', open("…").
    words = [w for words in parsed for word in words for w in alternatives(word)]
    for word in [w for w in words if re.search(r"[*?\[]", w)]:
        words += [found for base in bases for found in glob.glob(os.path.join(base, os.path.expanduser(word)))]
    pieces = [word for word in words if not any(place(word, base) for base in bases)]
    words += re.findall(r"[^\s'\"=:;,|&<>(){}`]+", " ".join(pieces))
    found |= {place(word, base) for base in bases for word in words}
    return sorted(found - {None})


def main():
    try:
        call = json.load(sys.stdin)
        line = (call.get("tool_input") or {}).get("command") or ""
        line = line if isinstance(line, str) else shlex.join(line)
        cwd = call.get("cwd") or call.get("working_dir") or os.getcwd()
    except (ValueError, AttributeError, TypeError) as e:
        forbid(f"gate.py: this is no call of a tool: {e}")
    parsed = commands(line)
    known = [[line]] if parsed is None else parsed
    for words in known:
        if "mount-skills" in map(os.path.basename, words) and "approve" in words:
            forbid("approving is for the user; ask them to run it: " + shlex.join(words))
    paths = named(line, known, cwd, mounts())
    if not paths:
        return
    substitutes = re.search(r"`|[$<>]\(", line)
    if parsed is not None and not substitutes and all(map(only_reads, parsed)):
        return
    for path in paths:
        try:
            asked = subprocess.run(["mount-skills", "gate", path], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as e:
            forbid(f"mount-skills gate cannot be asked about {path}: {e}")
        if asked.returncode != 0:
            forbid(f"not run, since it does more than read {path}. {asked.stderr.strip()}")


if __name__ == "__main__":
    try:
        main()
    except Exception as e:  # Another exit code than 2 would let the call pass.
        forbid(f"gate.py: {e}")

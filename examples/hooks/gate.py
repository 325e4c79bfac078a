#!/usr/bin/env python3
"""Lets an agent's shell run what a mounted skill says only if `mount-skills gate` agrees.

A hook that runs before a tool, for Claude Code, Codex, Gemini CLI and goose: the call comes as JSON on
stdin; exit code 0 says nothing, 2 forbids the call with the reason on stderr.

- A command that names nothing in a mount is none of its business.
- A command that only reads (READERS) may name anything there.
- Any other command needs the consent of each skill it names. Whatever it is about the mount that cannot be
  understood is forbidden, and so is what takes too long to be understood.
- Approving and refreshing are for the user.

It reads a command line and runs nothing of it. Who wants around it gets around it (a copy in two steps):
it keeps an agent to what was agreed, and is no sandbox.
"""

import glob
import json
import os
import re
import shlex
import signal
import subprocess
import sys

PATIENCE = int(os.environ.get("GATE_SECONDS", "20"))  # the runtimes let a call pass after 60
READERS = set(
    "[ [[ base64 basename cat cd cksum cmp column comm cut date diff dirname du echo egrep fgrep file find grep "
    "head jq ls md5sum nl od printf pwd readlink realpath rg set sha256sum sleep sort stat strings tac tail test "
    "tr tree true type uniq wc which".split()
)
# The words by which a reader runs or writes something.
NOT_READING = {
    "find": r"-(exec|execdir|ok|okdir|delete|fls|fprint.*)",
    "rg": r"--(pre|hostname-bin)(=.*)?",
    "sort": r"-[^-]*o.*|--[oc].*",
    "tree": r"-[^-]*o.*|--o.*",
    "uniq": r"[^-].*",
}
SED = re.compile(r"(\d+|\$|/[^/\\]*/)(,(\d+|\$|/[^/\\]*/))?p")
KEYWORDS = set("! do done elif else fi if then time until while { }".split())
HARMLESS = re.compile(r"(LC_ALL|LANG)=[\w.-]*")
LOOKING = {"diff", "gate", "list", "show", "status"}
SEARCHES = {"egrep", "fd", "fdfind", "find", "grep", "rg"}
FOR_THE_USER = {"approve", "refresh"}


class Unclear(Exception):
    """What cannot be understood."""


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


def with_inner(line):
    """The commands of a line and of each word that is a line itself, as in: sh -c '…'."""
    parsed = commands(line)
    found = [line.split()] if parsed is None else parsed
    inner = [word for words in found for word in words if word != line and re.search(r"\s", word)]
    return found + [words for word in inner for words in with_inner(word)]


def only_reads(words):
    while words and (words[0] in KEYWORDS or HARMLESS.fullmatch(words[0])):
        words = words[1:]
    if not words or words[0] == "for":
        return True
    for n, word in enumerate(words):
        # A redirection, or something quoted that looks like one.
        if ">" in word and set(word) <= set("<>&|") and words[n + 1 : n + 2] not in (["/dev/null"], ["1"], ["2"]):
            return False
    place, name = os.path.split(words[0])
    if place not in ("", "/bin", "/usr/bin"):
        return False
    if name == "sed":
        plain = len(words) > 2 and words[1] == "-n" and SED.fullmatch(words[2])
        return bool(plain) and not any(word.startswith("-") for word in words[3:])
    if name == "xargs":
        rest = [word for word in words[1:] if word not in ("-0", "-r")]
        return only_reads(rest) and bool(rest)
    if name == "mount-skills":
        return len(words) > 1 and words[1] in LOOKING
    not_reading = re.compile(NOT_READING.get(name, r"\Z."))
    return name in READERS and not any(not_reading.fullmatch(word) for word in words[1:])


def alternatives(word):
    """What a shell makes of braces."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", word)
    if not found:
        return [word]
    if word.count("{") > 6:
        raise Unclear("too many braces")
    parts = found[1].split(",")
    return [w for part in parts for w in alternatives(word[: found.start()] + part + word[found.end() :])]


def expanded(word):
    return os.path.expandvars(os.path.expanduser(word))


def directories(parsed, cwd):
    """Where the commands of a line may run: here, and wherever it goes."""
    found = {os.path.normpath(cwd)}
    for words in parsed:
        for n, word in enumerate(words):
            if word in ("cd", "pushd", "-C"):
                to = [w for w in words[n + 1 : n + 3] if w != "--"][:1] or ["~"]
                found |= {os.path.normpath(os.path.join(base, expanded(to[0]))) for base in found}
        if len(found) > 256:
            raise Unclear("too many directories")
    return found


def labels(root):
    try:
        return os.listdir(root)
    except OSError:  # Of another user, or its daemon is gone: nothing is read or run there either.
        return []


def named(parsed, cwd, roots):
    """What of the mounts the commands of a line name, or stand in."""
    def resolved(word, base):
        path = os.path.join(base, expanded(word))
        try:
            return os.path.realpath(path)
        except OSError:  # a link that may not be read
            return os.path.abspath(path)

    def place(word, base):
        path = resolved(word, base)
        inside = any(path == root or path.startswith(root + "/") for root in roots)
        # A word that is no path is one only where a file has its name.
        return path if inside and (os.path.isabs(expanded(word)) or os.path.lexists(path)) else None

    def elsewhere(word, base):
        return os.path.lexists(os.path.join(base, word)) and not place(word, base)

    bases = directories(parsed, cwd)
    found = {place(".", base) for base in bases}
    # Words, and what is within words: --file=PATH, sh -c '…', open("…").
    words = [w for words in parsed for word in words for w in alternatives(word)]
    for word in [w for w in words if re.search(r"[*?\[]", w)]:
        words += [found for base in bases for found in glob.glob(os.path.join(base, expanded(word)))]
    rest = " ".join(word for word in words if not any(place(word, base) for base in bases))
    words += re.findall(r"[^\s'\"=:;,|&<>(){}`]+", rest)
    found |= {place(word, base) for base in bases for word in words}
    # LABEL/SKILL or the mount's LABEL as text: behind a variable or a substitution, or told to mount-skills.
    for root in roots:
        for label in labels(root):
            inner, label = re.escape(f"{os.path.basename(root)}/"), re.escape(label)
            for text in re.finditer(rf"(?<![\w.-])(?:{inner})?({label}(?:/[^\s'\"`;|&<>(){{}}$]+)?)", rest):
                path = os.path.join(root, text[1])
                if "/" in text[0] and os.path.lexists(path) and not any(elsewhere(text[0], base) for base in bases):
                    found.add(path)
    # A search from above comes through the mount.
    for words in parsed:
        for n, word in enumerate(words):
            if os.path.basename(word) in SEARCHES:
                start = [w for w in words[n + 1 :] if not w.startswith("-")]
                start += [] if start and os.path.basename(word) in ("find", "grep", "egrep") else ["."]
                above = {resolved(w, base).rstrip("/") + "/" for w in start for base in bases}
                found |= {root for root in roots if root.startswith(tuple(above))}
    return sorted(found - {None})


def judge(line, cwd):
    roots = mounts()
    plain = commands(line)
    if not roots or (plain is not None and not re.search(r"`|[$<>]\(", line) and all(map(only_reads, plain))):
        return
    parsed = with_inner(line)
    every = [word for words in parsed for word in words]
    if FOR_THE_USER & set(every) and re.search(r"mount-skills(?![\w-])", " ".join([line, *every])):
        forbid(f"approving and refreshing are for the user; ask them to run it: {line}")
    for path in named(parsed, cwd, roots):
        root = max((root for root in roots if f"{path}/".startswith(f"{root}/")), key=len)
        within = path[len(root) + 1 :].split("/")
        if len(within) < 2 or within[0].startswith("."):
            forbid(f"not run: it does more than read, and {path} is no skill that could be approved; "
                   "make it one command that reads there, and another that does not name it")
        try:
            asked = subprocess.run(["mount-skills", "gate", path], capture_output=True, text=True)
        except OSError as e:
            forbid(f"mount-skills gate cannot be asked about {path}: {e}")
        if asked.returncode != 0:
            forbid(f"not run, since it does more than read {path}. {asked.stderr.strip()}")


def main():
    try:
        call = json.load(sys.stdin)
        line = (call.get("tool_input") or {}).get("command") or ""
        line = line if isinstance(line, str) else shlex.join(line)
        cwd = call.get("cwd") or call.get("working_dir") or os.getcwd()
    except (ValueError, AttributeError, TypeError) as e:
        forbid(f"gate.py: this is no call of a tool: {e}")
    judge(line, cwd)


def guarded():
    """Does it in a process that can be given up: who waits for a mount that hangs does not hear a signal."""
    def late(*_):
        os.killpg(child, signal.SIGKILL)
        forbid(f"gate.py: not understood in {PATIENCE} s; the mount may hang: mount-skills doctor")

    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            main()
        except Exception as e:  # Another exit code than 2 would let the call pass.
            forbid(f"gate.py: {e}")
        return
    try:
        os.setpgid(child, child)
    except OSError:  # it has done so itself, or is done
        pass
    signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    if os.WIFSIGNALED(status):
        forbid(f"gate.py: ended by signal {os.WTERMSIG(status)}")
    sys.exit(0 if status == 0 else 2)


if __name__ == "__main__":
    guarded()

#!/usr/bin/env python3
"""Lets an agent's shell run what a mounted skill says only if `mount-skills gate` agrees.

A hook that runs before a tool, for Claude Code, Codex, Gemini CLI and goose: the call comes as JSON on
stdin; exit code 0 says nothing, 2 forbids the call with the reason on stderr.

- A command that names nothing in a mount is none of its business.
- A command that only reads (READERS) may name anything there.
- Any other command needs the consent of each skill it names. Whatever it is about the mount that cannot be
  understood is forbidden, and so is what takes too long to be understood.
- Approving and refreshing are for the user.

GATE_SECONDS in the environment is how long that may take.

It reads a command line and runs nothing of it. Who wants around it gets around it (a copy in two steps):
it keeps an agent to what was agreed, and is no sandbox.
"""

import glob
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys

READERS = set(
    "[ [[ base64 basename cat cd cksum cmp column comm cut date diff dirname du echo egrep fgrep file find grep "
    "head jq ls md5sum nl od printf pwd readlink realpath rg set sha256sum sleep sort stat strings tac tail test "
    "tr tree true type uniq wc which".split()
)
# The words by which a reader runs or writes something. These readers take no word from elsewhere: a file of a
# skill may be named as an option.
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
OPERATOR = re.compile(r"&>>|<<<|<<-|&>|>&|<&|>>|>\||<<|<>|\|&|\|\||&&|;;|[\n;&|()<>]")
WRITES = {">", ">>", ">|", "&>", "&>>", "<>", ">&"}


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


class Word(str):
    """A word without its quotes; `live` are the characters in it by which the shell makes something else of it."""

    live = ""


class Command(list):
    """The words of a simple command; `writes` says that a redirection leaves something."""

    writes = False


def words_of(line):
    """The words and operators of a line. What this does not know for sure is Unclear."""
    text, live, at = None, "", 0
    while at < len(line):
        c, rest = line[at], at + 1
        if c in " \t" or OPERATOR.match(line, at):
            if text is not None:
                word = Word(text)
                word.live, text, live = live, None, ""
                yield word
            operator = OPERATOR.match(line, at)
            if operator:
                yield operator
                rest = operator.end()
        elif c == "#" and text is None:
            rest = (line + "\n").index("\n", at)
        elif c == "$" and line[rest : rest + 1] in ("'", '"'):
            raise Unclear("a string with escapes of its own")
        elif c == "'":
            rest = line.find("'", rest) + 1
            if rest == 0:
                raise Unclear("a quote without its end")
            text = (text or "") + line[at + 1 : rest - 1]
        elif c == '"':
            inner = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S).match(line, at)
            if not inner:
                raise Unclear("a quote without its end")
            live += "".join(re.findall(r"[$`]", inner[1]))
            text, rest = (text or "") + re.sub(r'\\([$`"\\\n])', lambda m: m[1].strip("\n"), inner[1]), inner.end()
        elif c == "\\":
            if rest == len(line):
                raise Unclear("a backslash at the end")
            if line[rest] != "\n":
                text = (text or "") + line[rest]
            rest += 1
        else:
            live += c if c in "*?[{$`" else ""
            text = (text or "") + c
        at = rest
    if text is not None:
        word = Word(text)
        word.live = live
        yield word


def commands(line):
    """The simple commands of a line."""
    found, target = [Command()], None
    for word in words_of(line):
        if not isinstance(word, Word):
            if word[0] in ("<<", "<<-"):
                raise Unclear("a document within the line")
            if target:
                found[-1].writes = True
            target = word[0] if word[0] in WRITES else None
            if not re.search("[<>]", word[0]):
                found.append(Command())
            continue
        if target and word != "/dev/null" and not (target == ">&" and word in ("1", "2")):
            found[-1].writes = True
        target = None
        found[-1].append(word)
    found[-1].writes |= target is not None
    return [command for command in found if command or command.writes]


def parsed(line):
    """The commands of a line, and whether that is all there is to it."""
    try:
        return commands(line), not re.search(r"`|[$<>]\(", line)
    except Unclear:
        words = Command(map(Word, line.split()))
        for word in words:
            word.live = "*?["
        return [words], False


def with_inner(line):
    """The commands of a line and of each word that is a line itself, as in: sh -c '…'."""
    found = parsed(line)[0]
    inner = [word for words in found for word in words if word != line and re.search(r"\s", word)]
    return found + [words for word in inner for words in with_inner(str(word))]


def only_reads(words):
    if words.writes:
        return False
    while words and (words[0] in KEYWORDS or HARMLESS.fullmatch(words[0])):
        words = words[1:]
    if not words or words[0] == "for":
        return True
    place, name = os.path.split(words[0])
    if place not in ("", "/bin", "/usr/bin") or words[0].live.strip("["):
        return False
    if name == "xargs":
        rest = [word for word in words[1:] if word not in ("-0", "-r")]
        return bool(rest) and rest[0] in READERS - set(NOT_READING)
    if name == "mount-skills":
        return len(words) > 1 and words[1] in LOOKING
    if (name == "sed" or name in NOT_READING) and any(w.live and w[0] in "*?[{$`" for w in words[1:] if w):
        return False
    if name == "sed":
        plain = len(words) > 2 and words[1] == "-n" and SED.fullmatch(words[2])
        return bool(plain) and not any(word.startswith("-") for word in words[3:])
    not_reading = re.compile(NOT_READING.get(name, r"\Z."))
    return name in READERS and not any(not_reading.fullmatch(word) for word in words[1:])


def alternatives(word):
    """What a shell makes of braces."""
    if "{" not in word.live:
        return [word]
    if word.count("{") > 6 or word.count(",") > 64:
        raise Unclear("too many braces")
    found = next((f for f in re.finditer(r"\{([^{}]*)\}", word) if "," in f[1]), None)
    if not found:
        return [word]
    made = [Word(word[: found.start()] + part + word[found.end() :]) for part in found[1].split(",")]
    for part in made:
        part.live = word.live
    return [w for part in made for w in alternatives(part)]


def expanded(word):
    return os.path.expandvars(os.path.expanduser(word))


def directories(found, cwd):
    """Where the commands of a line may run: here, and wherever it goes."""
    bases, others = {os.path.normpath(cwd)}, set()
    for words in found:
        for n, word in enumerate(words):
            if word in ("cd", "pushd", "-C"):
                to = expanded(([w for w in words[n + 1 : n + 3] if w != "--"] or ["~"])[0])
                there = {os.path.normpath(os.path.join(base, to)) for base in bases}
                there = {place for place in there if os.path.isdir(place)}
                others |= there
                bases |= there if word != "-C" else set()
        if len(bases | others) > 256:
            raise Unclear("too many directories")
    return bases | others


def labels(root):
    try:
        return os.listdir(root)
    except OSError:  # Of another user, or its daemon is gone: nothing is read or run there either.
        return []


def named(found, cwd, roots):
    """What of the mounts the commands of a line name, or stand in."""
    def resolved(word, base):
        path = os.path.join(base, expanded(word))
        try:
            return os.path.realpath(path)
        except OSError:  # a link that may not be read
            return os.path.abspath(path)

    def place(word, base):
        # A word that is no path is one only where a file has its name.
        word = expanded(word)
        if not os.path.isabs(word) and not os.path.lexists(os.path.join(base, word)):
            return None
        path = resolved(word, base)
        return path if any(path == root or path.startswith(root + "/") for root in roots) else None

    def elsewhere(word, base):
        return os.path.lexists(os.path.join(base, word)) and not place(word, base)

    bases = directories(found, cwd)
    words = [w for command in found for word in command for w in alternatives(word)]
    patterns = {os.path.join(base, expanded(w)) for base in bases for w in words if set(w.live) & set("*?[")}
    for pattern in patterns:
        start = resolved(os.path.dirname(re.split(r"[*?\[]", pattern)[0]), "/")
        if any(f"{start}/".startswith(f"{root}/") or f"{root}/".startswith(f"{start.rstrip('/')}/") for root in roots):
            made = list(itertools.islice(glob.iglob(pattern), 10_000))
            if len(made) == 10_000:
                raise Unclear("a pattern that stands for too many files")
            words += made
    # Words, and what is within words: --file=PATH, sh -c '…', open("…").
    rest = " ".join(word for word in words if not any(place(word, base) for base in bases))
    words += re.findall(r"[^\s'\"=:;,|&<>(){}`]+", rest)
    paths = {place(word, base) for base in bases for word in {".", *words}}
    # LABEL/SKILL or the mount's LABEL as text: behind a variable or a substitution, or told to mount-skills.
    for root in roots:
        for label in labels(root):
            inner, label = re.escape(f"{os.path.basename(root)}/"), re.escape(label)
            for text in re.finditer(rf"(?<![\w.-])(?:{inner})?({label}(?:/[^\s'\"`;|&<>(){{}}$]+)?)", rest):
                path = os.path.join(root, text[1])
                if "/" in text[0] and os.path.lexists(path) and not any(elsewhere(text[0], base) for base in bases):
                    paths.add(path)
    # A search from above comes through the mount.
    for command in found:
        for n, word in enumerate(command):
            if os.path.basename(word) in SEARCHES:
                start = [w for w in command[n + 1 :] if not w.startswith("-")]
                start += [] if start and os.path.basename(word) in ("find", "grep", "egrep") else ["."]
                above = {resolved(w, base).rstrip("/") + "/" for w in start for base in bases}
                paths |= {root for root in roots if root.startswith(tuple(above))}
    return sorted(paths - {None})


def is_for_the_user(words):
    """Whether a command is one of ours that agents leave alone, also behind a variable or a substitution."""
    verbs = [n for n, word in enumerate(words) if word in FOR_THE_USER]
    before = words[: verbs[0]] if verbs else []
    ours = any(os.path.basename(word) == "mount-skills" or word[:1] == "$" or "`" in word for word in before)
    return ours or bool(verbs and verbs[0] == 0)


def judge(line, cwd):
    roots = mounts()
    if len(line) > 100_000 or "\0" in line:
        raise Unclear("a line of more than 100,000 characters, or with a NUL")
    found, is_all = parsed(line)
    if not roots or (is_all and all(map(only_reads, found))):
        return
    found = with_inner(line)
    if "mount-skills" in line and any(map(is_for_the_user, found)):
        forbid(f"approving and refreshing are for the user; ask them to run it: {line}")
    for path in named(found, cwd, roots):
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
        forbid(f"gate.py: not understood in {patience} s; the line is too long, or the mount hangs: mount-skills doctor")

    # The runtimes give a hook 60 s, and then let the call pass.
    patience = int(os.environ.get("GATE_SECONDS", "20"))
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        main()
        return
    try:
        os.setpgid(child, child)
    except OSError:  # it has done so itself, or is done
        pass
    signal.signal(signal.SIGALRM, late)
    signal.alarm(patience)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    if os.WIFSIGNALED(status):
        forbid(f"gate.py: ended by signal {os.WTERMSIG(status)}")
    sys.exit(0 if status == 0 else 2)


if __name__ == "__main__":
    try:
        guarded()
    except Exception as e:  # Another exit code than 2 would let the call pass.
        forbid(f"gate.py: not understood: {e}")

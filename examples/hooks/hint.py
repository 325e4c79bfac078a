#!/usr/bin/env python3
"""Tells an agent where skills are mounted and which there are: `mount-skills list --format hint`.

    hint.py         as the answer of a SessionStart hook, for Claude Code, Codex and Gemini CLI
    hint.py FILE    into an instruction file (AGENTS.md, CLAUDE.md, GEMINI.md, .goosehints), in place of
                    what stands there between the two marks, or at its end

HINT_CHARS in the environment is how long it may be; MOUNT_SKILLS, which `mount-skills run` sets, says which
mount it is about. Without a mount there is nothing to say.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

BEGIN, END = "<!-- mount-skills -->", "<!-- /mount-skills -->"


def hint():
    command = ["mount-skills", "list", "--format", "hint", "--max-chars", os.environ.get("HINT_CHARS", "8000")]
    if "MOUNT_SKILLS" in os.environ:
        command += ["--mount", os.environ["MOUNT_SKILLS"]]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as e:
        sys.exit(f"hint.py: mount-skills cannot be asked: {e}")
    if asked.returncode != 0:
        print(asked.stderr, end="", file=sys.stderr)
    return asked.stdout if asked.returncode == 0 else ""


def write(file, text):
    """Replaces the block of a file, and leaves the rest as it is. The marks are whole lines; no text of a
    server is one."""
    file = os.path.realpath(file)
    old = ""
    if os.path.exists(file):
        with open(file, encoding="utf-8", errors="surrogateescape", newline="") as there:
            old = there.read()
    elif not text:
        return
    lines = old.split("\n")
    marks = [line.rstrip("\r") for line in lines]
    block = [BEGIN, *text.splitlines(), END] if text else []
    if BEGIN in marks and END in marks[marks.index(BEGIN):]:
        start = marks.index(BEGIN)
        lines[start : marks.index(END, start) + 1] = block
        new = "\n".join(lines)
    else:
        apart = "" if not old or not block else "\n" if old.endswith("\n") else "\n\n"
        new = old + apart + "".join(line + "\n" for line in block)
    if new == old:
        return
    with tempfile.NamedTemporaryFile("w", dir=os.path.dirname(file), delete=False, encoding="utf-8",
                                     errors="surrogateescape", newline="") as out:
        out.write(new)
    if os.path.exists(file):
        shutil.copymode(file, out.name)
    else:
        os.chmod(out.name, 0o644)
    os.replace(out.name, file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1], hint())
    else:
        answer = {"hookEventName": "SessionStart", "additionalContext": hint()}
        print(json.dumps({"hookSpecificOutput": answer} if answer["additionalContext"] else {}))

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
import subprocess
import sys

BEGIN, END = "<!-- mount-skills -->", "<!-- /mount-skills -->"


def hint():
    command = ["mount-skills", "list", "--format", "hint", "--max-chars", os.environ.get("HINT_CHARS", "8000")]
    if "MOUNT_SKILLS" in os.environ:
        command += ["--mount", os.environ["MOUNT_SKILLS"]]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if asked.returncode != 0:
        print(asked.stderr, end="", file=sys.stderr)
    return asked.stdout if asked.returncode == 0 else ""


def write(file, text):
    """Replaces the block of a file. The marks are whole lines; no text of a server is one."""
    lines = []
    if os.path.exists(file):
        with open(file, encoding="utf-8") as old:
            lines = old.read().splitlines()
    block = [BEGIN, *text.splitlines(), END] if text else []
    if BEGIN in lines and END in lines[lines.index(BEGIN):]:
        start = lines.index(BEGIN)
        lines[start : lines.index(END, start) + 1] = block
    else:
        lines += ([""] if lines and block else []) + block
    new = f"{file}.new"
    with open(new, "w", encoding="utf-8") as out:
        out.writelines(line + "\n" for line in lines)
    os.replace(new, file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1], hint())
    else:
        answer = {"hookEventName": "SessionStart", "additionalContext": hint()}
        print(json.dumps({"hookSpecificOutput": answer} if answer["additionalContext"] else {}))

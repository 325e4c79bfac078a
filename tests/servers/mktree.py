#!/usr/bin/env python3
"""Builds skill trees with everything that is awkward about files, names and frontmatter.

    mktree.py OUT                 the common tree: every real server publishes (nearly) all of it
    mktree.py --case NAME OUT     OUT/NAME, one skill at or over a limit of the extension
    mktree.py --expect SERVER     what SERVER (fastmcp, ts, agentskills, rmcp) does not publish of the
                                  common tree, as JSON: {"absent": [files], "no_entry": [skills that
                                  have no entry of their own, though their files may be in another's]}
    mktree.py --cases             the names for --case
    mktree.py --odd OUT           skills whose SKILL.md is odd or wrong, one each
    mktree.py --published SERVER OUT    those of them that SERVER publishes

OUT must not exist yet or be empty. The bytes are the same on every run.
"""

import json
import os
import random
import struct
import sys
import zlib
from pathlib import Path

LIMIT_FILES = 512
LIMIT_BYTES = 16 << 20


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def skill_md(name, description="Exists for tests. Use when testing.", more="", body="Nothing to do.\n"):
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n\n{body}"


def noise(seed, size):
    """Bytes that no compressor and no text decoder likes."""
    return random.Random(seed).randbytes(size)


def png():
    """A picture of 2x2 pixels."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    pixels = b"\0" + b"\xff\0\0\0\xff\0" + b"\0" + b"\0\0\xff\xff\xff\xff"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


ODD_NAMES = [
    "two words.md", " leading and trailing .md", "half 50%.md", "escaped%20space.md", "%2e%2e", "plus+plus.md",
    "hash#mark.md", "what?.md", "semi;colon.md", "this&that=those.md", "at@home.md", "tilde~", "star*.md",
    "pipe|line.md", "it's.md", 'say "hi".md', "[link](target).md", "{curly}.md", "<angle>.md", "back`tick.md",
    "dollar$HOME.md", "caret^.md", "comma,.md", "bang!.md", "-rf", "UPPER.MD", "upper.md", "dot.", "no-extension",
    "caf\u00e9.md", "cafe\u0301.md", "日本語.md", "עברית.md", "emoji-🦀.md", "joined-👩‍💻.md",
    "long-" + "x" * 240 + ".md", "deep folder/ with space/ünder/läufer.md",
]

ODD_CONTENT = {
    "empty.txt": b"",
    "empty.bin": b"",
    "newline.txt": b"\n",
    "crlf.md": b"one\r\ntwo\r\n",
    "mixed-ends.txt": b"one\rtwo\nthree\r\nno end",
    "bom.md": b"\xef\xbb\xbf# After a byte order mark\n",
    "utf16.txt": "sixteen\n".encode("utf-16"),
    "latin1.txt": "gar\u00e7on\n".encode("latin-1"),
    "nul.txt": b"before\0after\n",
    "controls.txt": bytes(range(1, 32)) + b"\x7f\n",
    "separators.txt": "line\u2028paragraph\u2029next\u0085end\n",
    "bidi.txt": "\u202egnp.live\u202c\n",
    "astral.txt": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 🦀\n",
    "noncharacter.txt": "\ufffe \uffff \ufffd\n",
    "cut-utf8.txt": "€".encode()[:2],
    "all-bytes.bin": bytes(range(256)),
    "picture.png": png(),
    "not-a.png": "text under a picture's name\n",
    "data.json": '{"a": [1, 2.50, "\\u00e9"]}\n',
    "page.html": "<!doctype html><title>t</title>\n",
    "long-line.txt": "x" * 300_000,
}

RICH_FRONTMATTER = """---
name: front
description: >-
  Folded over several lines — with ünïcode,
  "quotes" and a colon: here.
license: "Apache-2.0"
compatibility: Needs git and a shell
allowed-tools: Bash(git:*) Read
metadata:
  author: 'it''s me'
  version: "1.0"
x-integer: 42
x-float: 2.50
x-exponent: 1e3
x-truth: true
x-nothing: null
x-empty: ""
x-yes: yes
x-octal: 0o17
x-hex: 0xFF
x-list: [a, "b", 3, [4]]
x-map: {k: v, n: {m: 1}}
x-escapes: "tab\\tline\\nsmile \\u263a"
x-block: |
  kept
    as it
  stands
x-comment: value # not part of it
---

# Front
"""


def common_tree(out):
    write(out / "README.txt", "A loose file: it belongs to no skill.\n")
    write(out / "plain/SKILL.md", skill_md("plain"))

    write(out / "nested/SKILL.md", skill_md("nested", body="Read guide/start.md.\n"))
    for path in ["guide/start.md", "guide/more/next.md", "a/b/c/d/e/f/g/h/deep.txt", "scripts/tool.py"]:
        write(out / "nested" / path, f"This is {path}.\n")
    write(out / "nested/scripts/run.sh", "#!/bin/sh\necho run\n")
    (out / "nested/scripts/run.sh").chmod(0o755)

    write(out / "names/SKILL.md", skill_md("names"))
    for name in ODD_NAMES:
        write(out / "names" / name, f"This is {name}.\n")
    write(out / "colon/SKILL.md", skill_md("colon"))
    write(out / "colon/10:30.md", "half past ten\n")
    write(out / "hidden/SKILL.md", skill_md("hidden"))
    for path in [".env.example", ".config/settings.md", "seen.md"]:
        write(out / "hidden" / path, f"This is {path}.\n")

    write(out / "content/SKILL.md", skill_md("content"))
    for name, content in ODD_CONTENT.items():
        write(out / "content" / name, content)
    write(out / "big/SKILL.md", skill_md("big"))
    write(out / "big/text.txt", "".join(f"{n:07d} the quick brown fox jumps over it\n" for n in range(125_000))[: 5 << 20])
    write(out / "big/noise.bin", noise("big", 5 << 20))
    write(out / "many/SKILL.md", skill_md("many"))
    for n in range(200):
        write(out / f"many/files/{n:03d}.md", f"File {n}\n" + "x" * (n % 60) + "\n")

    write(out / "outer/SKILL.md", skill_md("outer"))
    write(out / "outer/notes.md", "outer notes\n")
    write(out / "outer/inner/SKILL.md", skill_md("inner", body="A skill inside a skill.\n"))
    write(out / "outer/inner/notes.md", "inner notes\n")
    for team in ["billing", "support"]:
        write(out / f"acme/{team}/refunds/SKILL.md", skill_md("refunds", f"Refunds of {team}."))
        write(out / f"acme/{team}/refunds/mails/sorry.md", f"Dear customer of {team}\n")

    write(out / "front/SKILL.md", RICH_FRONTMATTER)
    write(out / "windows/SKILL.md", skill_md("windows").replace("\n", "\r\n"))
    write(out / "marked/SKILL.md", "---\nname: marked\ndescription: Has fences and bytes below.\n---\n---\n\u2028 end: no\n---\n")


LOOSE = ["README.txt"]
HIDDEN = ["hidden/.config/settings.md", "hidden/.env.example"]
EXPECT = {
    "fastmcp": {"absent": LOOSE, "no_entry": ["outer/inner"]},
    "ts": {"absent": LOOSE + HIDDEN, "no_entry": []},
    "rmcp": {"absent": LOOSE + HIDDEN, "no_entry": []},
    "agentskills": {
        "absent": LOOSE
        + ["acme/support/refunds/SKILL.md", "acme/support/refunds/mails/sorry.md", "colon/10:30.md", "colon/SKILL.md"],
        "no_entry": ["acme/support/refunds", "colon"],
    },
}


def files(count):
    return lambda name: {f"files/{n:03d}.md": f"{n}\n" for n in range(count - 1)}


def fill_up(total, file, byte):
    """One big file, so that the skill has `total` bytes."""

    def make(name):
        size = total - len(skill_md(name).encode())
        return {file: noise(name, size) if byte is None else byte * size}

    return make


CASES = {
    "at-512": files(LIMIT_FILES),
    "over-513": files(LIMIT_FILES + 1),
    "at-16m-blob": fill_up(LIMIT_BYTES, "noise.bin", None),
    "at-16m-text": fill_up(LIMIT_BYTES, "controls.txt", b"\x01"),  # six bytes each in JSON
    "over-16m": fill_up(LIMIT_BYTES + 1, "noise.bin", None),
}


def one_case(name, out):
    write(out / name / "SKILL.md", skill_md(name))
    for path, content in CASES[name](name).items():
        write(out / name / path, content)


def fields(more):
    """A SKILL.md with these lines of frontmatter after the usual ones."""
    return lambda name: skill_md(name, more=more)


def described(value):
    """A SKILL.md with this description, as it is written."""
    return lambda name: f"---\nname: {name}\ndescription: {value}\n---\n\nBody.\n"


def whole(text):
    return lambda name: text.replace("NAME", name)


BOMB = "a: &a [w, w, w, w, w, w, w, w, w]\n" + "".join(
    f"{q}: &{q} [*{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}, *{p}]\n" for p, q in zip("abcdefg", "bcdefgh")
)
FRONT = "---\nname: NAME\ndescription: Exists for tests.\n"
# By the name of the skill: its SKILL.md.
ODD = {
    "colon": described("Plan releases. Triggers on: tag, ship"),
    "windows-bom": whole("\ufeff" + (FRONT + "metadata:\n  note: |\n    one\n    two\n---\n\nBody\n").replace("\n", "\r\n")),
    "bom": whole("\ufeff" + FRONT + "---\nBody\n"),
    "fence-at-end": whole(FRONT + "---"),
    "fence-padded": whole("---  \nname: NAME\ndescription: Exists.\n---\t \nBody\n\n---\n\nmore\n"),
    "date": fields("metadata:\n  released: 2026-03-05\n"),
    "date-quoted": fields("metadata:\n  released: '2026-03-05'\n"),
    "time": fields("metadata:\n  at: 2026-03-05T10:20:30Z\n"),
    "version": fields("metadata:\n  version: 1.10\n"),
    "yes-word": fields("user-invocable: yes\n"),
    "off-word": fields("metadata:\n  debug: off\n  answer: n\n"),
    "octal": fields("metadata:\n  a: 012\n  b: 0o17\n  c: 0x1F\n  d: 1_000\n"),
    "base-60": fields("metadata:\n  at: 1:30\n"),
    "nulls": fields("metadata:\n  a:\n  b: ~\n  c: null\n  d: ''\n"),
    "nan": fields("metadata:\n  a: .nan\n  b: .inf\n"),
    "big-integer": fields("metadata:\n  id: 12345678901234567890\n"),
    "exact-integer": fields("metadata:\n  id: 9007199254740993\n"),
    "floats": fields("metadata:\n  a: 1e3\n  b: 2.50\n  c: -.5\n"),
    "twice": whole("---\nname: NAME\ndescription: Safe summary\ndescription: Other text\n---\nBody\n"),
    "folded": whole("---\nname: NAME\ndescription: >\n  one\n  two\n\n  three\n---\nBody\n"),
    "folded-first": whole("---\ndescription: >\n  one\n  two\nname: NAME\n---\nBody\n"),
    "literal-keep": fields("metadata:\n  a: |+\n    text\n\n"),
    "long-description": described('"' + "\u00e9" * 1500 + '"'),
    "empty-description": described('""'),
    "number-description": described("2026"),
    "no-description": whole("---\nname: NAME\n---\nBody\n"),
    "no-name": whole("---\ndescription: d\n---\nBody\n"),
    "name-differs": whole("---\nname: another\ndescription: d\n---\nBody\n"),
    "Name-Case": whole("---\nname: name-case\ndescription: d\n---\nBody\n"),
    "under_score": fields(""),
    "two--hyphens": fields(""),
    "n" * 65: fields(""),
    "aliases": fields("metadata: &m {k: v}\nx-again: *m\n"),
    "bomb": fields(BOMB),
    "merge-key": fields("x-a: &a {k: v}\nx-b: {<<: *a, l: w}\n"),
    "tag": fields("x-a: !own value\n"),
    "tag-str": fields("x-a: !!str 12\n"),
    "key-integer": fields("metadata:\n  1: a\n"),
    "key-yes": fields("metadata:\n  yes: a\n"),
    "key-float": fields("metadata:\n  1.50: a\n"),
    "key-date": fields("metadata:\n  2026-03-05: a\n"),
    "deep": fields("x-d: " + "[" * 40 + "v" + "]" * 40 + "\n"),
    "comments": fields("# a comment\nlicense:   MIT  # another\n\n"),
    "flow": fields('metadata: {"a": [1, 2.5, null, true], b: {c: d}}\n'),
    "tab": fields("metadata:\n\ta: b\n"),
    "escapes": fields('x-a: "tab\\t \\u263a"\nx-b: \'it\'\'s\'\n'),
    "empty-frontmatter": whole("---\n---\nBody\n"),
    "no-frontmatter": whole("# Title\n"),
    "unclosed": whole(FRONT),
    "second-document": fields("...\nname: y\n"),
    "nested-metadata": fields("metadata:\n  io.modelcontextprotocol/later: {a: [1]}\n"),
    "tools-list": fields("allowed-tools: [Read, Grep]\n"),
    "not-utf8": lambda name: skill_md(name).encode().replace(b"Exists", b"Caf\xe9"),
    "body-not-utf8": lambda name: skill_md(name).encode() + b"\xff\xfe\n",
}


# What no server publishes of it, and what each one leaves out beside that.
ODD_NOWHERE = {
    "Name-Case", "body-not-utf8", "bomb", "colon", "empty-frontmatter", "key-float", "key-integer",
    "name-differs", "n" * 65, "no-description", "no-frontmatter", "no-name", "not-utf8",
    "second-document", "tab", "tag", "twice", "two--hyphens", "unclosed", "under_score",
}
ODD_LEFT_OUT = {
    "rmcp": {
        "bom", "windows-bom",
    },
    "fastmcp": {
        "aliases", "date", "empty-description", "fence-padded", "key-date", "key-yes", "long-description",
        "merge-key", "nan", "number-description", "time",
    },
    "agentskills": {
        "base-60", "big-integer", "date", "empty-description", "exact-integer", "fence-padded", "floats",
        "flow", "key-date", "key-yes", "long-description", "nan", "nested-metadata", "nulls",
        "number-description", "octal", "off-word", "time", "tools-list", "version",
    },
    "ts": {
        "aliases", "big-integer", "deep", "empty-description", "exact-integer", "fence-padded", "floats",
        "flow", "long-description", "merge-key", "nan", "nested-metadata", "nulls", "number-description",
        "octal", "tag-str", "version",
    },
}


def odd_tree(out, names=tuple(ODD)):
    for name in names:
        make = ODD[name]
        write(out / name / "SKILL.md", make(name))
        write(out / name / "a.txt", f"beside {name}\n")


def new_directory(path):
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    if os.listdir(out):
        sys.exit(f"mktree.py: {out} is not empty; name a new directory")
    return out


def main(argv):
    match argv:
        case ["--cases"]:
            print(*CASES, sep="\n")
        case ["--expect", server] if server in EXPECT:
            print(json.dumps(EXPECT[server], ensure_ascii=False, indent=1))
        case ["--case", name, out] if name in CASES:
            one_case(name, new_directory(out))
        case ["--odd", out]:
            odd_tree(new_directory(out))
            write(Path(out) / "lower-case/skill.md", skill_md("lower-case"))  # nowhere either
        case ["--published", server, out] if server in EXPECT:
            odd_tree(new_directory(out), sorted(ODD.keys() - ODD_NOWHERE - ODD_LEFT_OUT[server]))
        case [out] if not out.startswith("-"):
            common_tree(new_directory(out))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Serves the skills below DIR with agentskills-mcp-server.

    agentskills_server.py DIR stdio|http [PORTFILE] [--reload]

http: a free port of 127.0.0.1; the URL appears in PORTFILE. --reload: publish changes twice a second.
Ends when its stdin closes, and on SIGTERM.

The package wants a list of skills and refuses to start if one of them is not to its taste. So each
skill found below DIR is tried alone first; refused ones, and a second one of a name, are left out
with a line on stderr.
"""

import asyncio
import os
import sys
from pathlib import Path

from agentskills_core import AgentSkillsError, Skill
from agentskills_fs import LocalFileSystemSkillProvider
from agentskills_mcp_server import create_mcp_server

from loopback import serve

# The package asks for Python 3.12 for this method only; there are no junctions outside Windows.
if not hasattr(Path, "is_junction"):
    Path.is_junction = lambda _: False


def leave_out(path, why):
    print(f"left out {path}: {why}", file=sys.stderr)


async def publishable(root):
    """({skill name: its path below root}, [Skill])"""
    paths, skills = {}, []
    for skill_md in sorted(root.rglob("SKILL.md")):
        folder = skill_md.parent
        name, path = folder.name, str(folder.relative_to(root))
        if name in paths:
            leave_out(path, f"its name is taken by {paths[name]}")
            continue
        skill = Skill(name, LocalFileSystemSkillProvider(folder.parent, max_file_bytes=16 << 20))
        try:
            await create_mcp_server([skill], skill_paths={name: path})
        except (AgentSkillsError, ValueError) as e:
            leave_out(path, f"{type(e).__name__}: {e}")
            continue
        paths[name] = path
        skills.append(skill)
    return paths, skills


async def refresh(server):
    while True:
        await asyncio.sleep(0.5)
        try:
            await server.refresh()
        except Exception as e:
            print(f"refresh: {e}", file=sys.stderr)


async def main(directory, mode, port_file=None):
    paths, skills = await publishable(Path(directory))
    server = await create_mcp_server(skills, skill_paths=paths, name="agentskills")
    background = asyncio.create_task(refresh(server)) if "--reload" in sys.argv else None
    if mode == "stdio":
        await server.run_stdio_async()
    else:
        await serve(server.streamable_http_app(), port_file)
    if background:
        background.cancel()


asyncio.run(main(*(a for a in sys.argv[1:] if a != "--reload")))

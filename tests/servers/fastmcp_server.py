"""Serves the skills below DIR with FastMCP.

    fastmcp_server.py DIR stdio|http [PORTFILE] [--reload]

http: a free port of 127.0.0.1; the URL appears in PORTFILE. --reload: follow changes of DIR.
Ends when its stdin closes, and on SIGTERM.
"""

import asyncio
import os
import sys

os.environ.setdefault("FASTMCP_CHECK_FOR_UPDATES", "off")

from fastmcp import FastMCP
from fastmcp.skills.provider import SkillsDirectoryProvider

from loopback import serve

args = [a for a in sys.argv[1:] if a != "--reload"]
server = FastMCP("fastmcp-skills")
server.add_provider(SkillsDirectoryProvider(args[0], reload="--reload" in sys.argv))
if args[1] == "stdio":
    server.run(transport="stdio", show_banner=False)
else:
    asyncio.run(serve(server.http_app(path="/mcp", transport="http"), args[2]))

"""Serves the skills below DIR with FastMCP, to those who log in (OAuth 2.1, in one process).

    oauth_server.py DIR PORTFILE LIFE [--secret] [--tls=PEM]

An access token is good for LIFE seconds, and then its refresh token for one other. --secret: there is
no registration; the one client is `known` with the secret `SECRET-known`. --tls: over HTTPS, with the
certificate and the key in PEM. The URL appears in PORTFILE;
if it holds one already, its port is used again. Each request is a line of JSON in PORTFILE.log: method,
path, status, and authorized (whether it came with a token). For the tests:

    GET /test/revoke      no token that was issued is good any longer
    GET /test/deny        the next login is refused
    GET /test/lock        no token is accepted, until /test/unlock
    GET /test/break       the next use of a refresh token is answered with 503

Ends when its stdin closes, and on SIGTERM.
"""

import asyncio
import json
import os
import socket
import sys
from urllib.parse import urlsplit

os.environ.setdefault("FASTMCP_CHECK_FOR_UPDATES", "off")

from fastmcp import FastMCP
from fastmcp.server.auth.auth import ClientRegistrationOptions, RevocationOptions
from fastmcp.server.auth.providers import in_memory
from fastmcp.skills.provider import SkillsDirectoryProvider
from mcp.server.auth.provider import AuthorizeError
from mcp.shared.auth import OAuthClientInformationFull
from starlette.responses import PlainTextResponse

from loopback import Server


class Provider(in_memory.InMemoryOAuthProvider):
    deny = False

    async def authorize(self, client, params):
        if self.deny:
            self.deny = False
            raise AuthorizeError("access_denied", "the user said no")
        return await super().authorize(client, params)


class Known(OAuthClientInformationFull):
    """A client that comes back to whatever port it has."""

    def validate_redirect_uri(self, redirect_uri):
        return redirect_uri


class Logged:
    """Notes each request, and takes those that are for the tests."""

    def __init__(self, app, provider, log):
        self.app, self.provider, self.log = app, provider, open(log, "a")
        self.broken = self.locked = False

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        path = scope["path"]
        if path.startswith("/test/"):
            self.act(path.removeprefix("/test/"))
            return await PlainTextResponse("ok\n")(scope, receive, send)
        parts, status = [], []

        async def taken():
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def given(message):
            if message["type"] == "http.response.start":
                status.append(message["status"])
            await send(message)

        if path == "/mcp" and self.locked:
            status = [401]
            await PlainTextResponse("", 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        elif path == "/token" and self.broken:
            self.broken, status = False, [503]
            while (await taken()).get("more_body"):
                pass
            await PlainTextResponse("later\n", 503)(scope, receive, send)
        else:
            await self.app(scope, taken, given)
        row = {"method": scope["method"], "path": path, "status": status[0] if status else None}
        row["authorized"] = any(name == b"authorization" for name, _ in scope["headers"])
        if path in ("/token", "/revoke"):
            row["form"] = sorted(p.split("=")[0] for p in b"".join(parts).decode().split("&"))
            row["refresh"] = b"grant_type=refresh_token" in b"".join(parts)
        print(json.dumps(row), file=self.log, flush=True)

    def act(self, what):
        if what == "revoke":
            self.provider.access_tokens.clear()
            self.provider.refresh_tokens.clear()
        elif what == "deny":
            self.provider.deny = True
        elif what in ("lock", "unlock"):
            self.locked = what == "lock"
        elif what == "break":
            self.broken = True


async def main(directory, port_file, life):
    tls = next((a.removeprefix("--tls=") for a in sys.argv if a.startswith("--tls=")), None)
    in_memory.DEFAULT_ACCESS_TOKEN_EXPIRY_SECONDS = int(life)
    old = open(port_file).read() if os.path.exists(port_file) else ""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", urlsplit(old).port or 0))
    provider = Provider(
        base_url=f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}",
        client_registration_options=ClientRegistrationOptions(enabled="--secret" not in sys.argv),
        revocation_options=RevocationOptions(enabled=True),
    )
    if "--secret" in sys.argv:
        provider.clients["known"] = Known(
            client_id="known",
            client_secret="SECRET-known",
            token_endpoint_auth_method="client_secret_post",
            redirect_uris=["http://127.0.0.1/callback"],
        )
    server = FastMCP("oauth-skills", auth=provider)
    server.add_provider(SkillsDirectoryProvider(directory, reload=True))
    app = server.http_app(path="/mcp", transport="http")
    await Server(Logged(app, provider, f"{port_file}.log"), port_file, tls).serve(sockets=[listener])


asyncio.run(main(*[a for a in sys.argv[1:] if not a.startswith("--")]))

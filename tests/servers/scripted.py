#!/usr/bin/env python3
"""An MCP skills server that misbehaves as a scene tells it to.

    scripted.py SCENE.json                      over stdio
    scripted.py SCENE.json --http PORTFILE      over HTTP on 127.0.0.1; the URL appears in PORTFILE. If
                                                PORTFILE holds a URL already, its port is used again.

Both end when stdin closes (so keep it open) and on SIGTERM; after ten minutes in any case. The scene
is read again whenever the file changes; replace it by rename. All of it is optional:

  era           "modern" (default): revision 2026-07-28, server/discover. "legacy": revision
                2025-11-25, initialize. "both".
  skills        [SKILL...]
  entries       [raw entries, appended to the listing as they are]
  page          entries in a page of the listing; default: all
  cursors       "repeat": each page is the first one and names the same next one. "endless": there is
                always a next page; those past the end are empty. "new": the same, but those past the
                end have a skill each that was not there before
  ttlMs, cacheScope     0, "private"; null: left out
  directoryRead true: resources/directory/read works and is declared
  capabilities  instead of what would be declared
  token         over HTTP, whatever comes without this bearer token gets 401 (logged as "refused")
  session       true: over HTTP, initialize gives out a session id; whatever comes without it gets 404
  lost          instead of that 404: another status, or DATA: an event stream
  sse           true: HTTP replies are event streams
  rules         [RULE...]
  start         START, or a list of them: one for each process; the last one also for all later ones

SKILL: path ("team/greet") or uri of its SKILL.md, and
  files         {path below the skill: FILE}. SKILL.md is made up if missing.
  entry         laid over the entry that fits the files; a null drops the field. Frontmatter is taken
                from plain `key: value` lines; for anything else give it here.
  rows          [more rows for entry.resources]
  listed        false: skills/list leaves it out, skills/get and reads know it
FILE: a DATA, or a DATA object that also has
  uri           instead of the one that fits the path
  row           laid over its row in entry.resources; a null drops the field
  serve         DATA that reads give instead, so that size and digest do not fit
  listed        false: readable, but not in entry.resources
  as            "blob": never sent as text
  mime          its mimeType
  times         so many files of this content, at PATH-0, PATH-1, ...
DATA: "text" | {"text": ""} | {"b64": ""} | {"fill": "x", "size": bytes} | [DATA, one after the other]

RULE: matches by whichever it has of method, uri, cursor, process (1 is the first started with this
scene); of the matches, `skip` are let pass, then `times` are taken (default all; counted over all
processes, and anew for a rule that changed). The first rule that takes a request decides:
  delay         seconds before anything else is done
  stderr        DATA to write to stderr first
  exit          exit code: die instead of replying (with cut: after it)
  before        [DATA lines to write first | seconds to pause]; @ID@ stands for the request id (HTTP:
                events, so only with sse)
  stderr        DATA, written to stderr before anything else
  look          a path to list and read before anything else; what it came to is logged as "looked"
  hang          true: never reply
  error         {"code", "message", perhaps "data"} as the reply
  result        laid over the result; a null drops the field
  contents      the contents array of a read
  serve         DATA: the bytes of a read
  raw           DATA: the whole reply line; @ID@ stands for the request id
  twice         true: reply two times
  after         like before, but after the reply
  flood         bytes: write that many without a line end in place of the reply
  cut           0..1: write only this part of the reply, then exit (HTTP: then close the connection)
  drip          [bytes, seconds]: write that many bytes at a time, with pauses
  status, headers, sse      of this HTTP reply

START: first delay (seconds) and stderr (DATA, written at once), then exit (code), or
  banner        [lines on stdout before anything else]
  child         true: spawn a `sleep`. "inherit": one that keeps our stdout and stderr open
  ignoreTerm, ignoreEof     true: go on after SIGTERM, after the end of stdin

Log: SCENE.json.log, one JSON object a line with event, pid, process (its number), time, and
  start · request: id, method, params, headers (HTTP) · note: a message that wants no reply · bad: a
  line that is no JSON · refused: headers · child: child (its pid) · term · eof
Counts that outlive a process are in SCENE.json.counts.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from scene import Refusal, Scene, data, laid_over

LIFETIME = 600


class Server:
    """The scene in force, the rules, the log: what both transports share."""

    def __init__(self, path):
        self.path, self.stamp, self.lock = path, None, threading.Lock()
        self.log_file = os.open(path + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.process = self.count("processes")
        self.log("start")
        self.refresh()

    def refresh(self):
        stat = os.stat(self.path)
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if stamp != self.stamp:
            with open(self.path) as f:
                self.scene, self.stamp = Scene(f.read()), stamp
        return self.scene

    def log(self, event, **more):
        line = {"event": event, "pid": os.getpid(), "process": self.process, "time": time.time(), **more}
        os.write(self.log_file, json.dumps(line).encode() + b"\n")

    def count(self, key):
        """Adds one to a count that all processes of the scene share; returns it."""
        with open(os.open(self.path + ".counts", os.O_RDWR | os.O_CREAT, 0o644), "r+b") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            counts = json.loads(f.read() or "{}")
            counts[key] = counts.get(key, 0) + 1
            # In one piece: we may be ended at any moment. It never gets shorter.
            os.pwrite(f.fileno(), json.dumps(counts).encode(), 0)
        return counts[key]

    def rule_for(self, request):
        facts = {**request.get("params", {}), "method": request["method"], "process": self.process}
        for rule in self.scene.spec.get("rules", []):
            if any(rule[key] != facts.get(key) for key in ("method", "uri", "cursor", "process") if key in rule):
                continue
            if "skip" in rule or "times" in rule:
                n = self.count(json.dumps(rule, sort_keys=True)) - rule.get("skip", 0)
                if n < 1 or n > rule.get("times", n):
                    continue
            return rule
        return {}

    def reply(self, request, **more):
        """(the rule that takes the request, the reply without its line end)"""
        with self.lock:
            scene, ident, params = self.refresh(), request["id"], request.get("params", {})
            self.log("request", id=ident, method=request["method"], params=params, **more)
            rule = self.rule_for(request)
        if "look" in rule:
            self.log("looked", what=look(rule["look"]))
        if "raw" in rule:
            return rule, with_id(rule["raw"], ident)
        message = {"jsonrpc": "2.0", "id": ident}
        try:
            if "error" in rule:
                raise Refusal(**rule["error"])
            result = scene.answer(request["method"], params, rule)
        except Refusal as refusal:
            if "result" not in rule:
                return rule, json.dumps({**message, "error": refusal.error}).encode()
            result = {}
        if scene.spec.get("era") != "legacy":
            result["resultType"] = "complete"
        if request["method"] not in ("initialize", "ping"):
            hints = {"ttlMs": scene.spec.get("ttlMs", 0), "cacheScope": scene.spec.get("cacheScope", "private")}
            result.update({k: v for k, v in hints.items() if v is not None})
        return rule, json.dumps({**message, "result": laid_over(result, rule.get("result", {}))}).encode()

    def start(self):
        start = self.scene.spec.get("start", {})
        if isinstance(start, list):
            start = start[min(self.process, len(start)) - 1]
        self.ignores_eof = start.get("ignoreEof")
        if start.get("ignoreTerm"):
            signal.signal(signal.SIGTERM, lambda *_: self.log("term"))
        time.sleep(start.get("delay", 0))
        write(2, data(start.get("stderr", "")))
        if "exit" in start:
            os._exit(start["exit"])
        if start.get("child"):
            out = None if start["child"] == "inherit" else subprocess.DEVNULL
            child = subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            self.log("child", child=child.pid)
        for line in start.get("banner", []):
            write(1, data(line) + b"\n")

    def end(self):
        self.log("eof")
        while self.ignores_eof:
            time.sleep(1)
        os._exit(0)


def look(path):
    try:
        with open(path) as f:
            return [os.listdir(os.path.dirname(path)), f.read()]
    except OSError as e:
        return e.strerror


def with_id(line, ident):
    return data(line).replace(b"@ID@", json.dumps(ident).encode())


def write(fd, content):
    while content:
        content = content[os.write(fd, content) :]


def act(rule, request, content, put, flow):
    """Does what the rule says with a reply; `put` writes one line or event, `flow` a part of one."""
    write(2, data(rule.get("stderr", "")))
    for item in rule.get("before", []):
        if isinstance(item, (int, float)):
            time.sleep(item)
        else:
            put(with_id(item, request["id"]))
    if rule.get("hang"):
        threading.Event().wait()
    if "flood" in rule:
        for _ in range(0, rule["flood"], 1 << 20):
            flow(b"x" * (1 << 20))
    elif "cut" in rule or "exit" not in rule:
        for _ in range(2 if rule.get("twice") else 1):
            put(content, rule.get("cut", 1), *rule.get("drip", ()))
    for item in rule.get("after", []):
        put(with_id(item, request["id"]))
    if "exit" in rule or "cut" in rule:
        put(None)


def pieces(content, part, size=1 << 60, pause=0):
    content = content[: int(len(content) * part)]
    for at in range(0, len(content), size):
        yield content[at : at + size]
        time.sleep(pause)


def serve_stdio(server):
    writing = threading.Lock()

    def respond(request):
        rule, content = server.reply(request)
        time.sleep(rule.get("delay", 0))

        def put(line, part=1, *drip):
            if line is None:
                os._exit(rule.get("exit", 1))
            with writing:
                for piece in pieces(line + b"\n", part, *drip):
                    write(1, piece)

        act(rule, request, content, put, lambda part: write(1, part))

    for line in sys.stdin.buffer:
        try:
            message = json.loads(line)
        except ValueError:
            server.log("bad", line=repr(line[:500]))
            continue
        if "method" in message and "id" in message:
            threading.Thread(target=respond, args=[message], daemon=True).start()
        else:
            server.log("note", **message)
    server.end()


def serve_http(server, port_file):
    sessions = set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def head(self, status, headers):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def nothing(self, status=405):
            self.head(status, {"Content-Length": "0"})

        do_GET = do_DELETE = nothing

        def do_POST(self):
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with server.lock:
                token = server.refresh().spec.get("token")
            if token and headers.get("authorization") != f"Bearer {token}":
                server.log("refused", headers=headers)
                return self.head(401, {"WWW-Authenticate": "Bearer", "Content-Length": "0"})
            if "method" not in message or "id" not in message:
                server.log("note", **message, headers=headers)
                return self.nothing(202)
            rule, content = server.reply(message, headers=headers)
            time.sleep(rule.get("delay", 0))
            more = rule.get("headers", {})
            if server.scene.spec.get("session") and message["method"] == "initialize":
                more = {**more, "Mcp-Session-Id": uuid.uuid4().hex}
                sessions.add(more["Mcp-Session-Id"])
            elif server.scene.spec.get("session") and headers.get("mcp-session-id") not in sessions:
                lost = server.scene.spec.get("lost", 404)
                if isinstance(lost, int):
                    return self.nothing(lost)
                self.head(200, {"Content-Type": "text/event-stream", "Connection": "close"})
                return self.wfile.write(with_id(lost, message["id"]))
            stream, begun = rule.get("sse", server.scene.spec.get("sse")), []
            if stream:
                kind = {"Content-Type": "text/event-stream", "Connection": "close"}
            else:
                kind = {"Content-Type": "application/json", "Content-Length": str(rule.get("flood", len(content)))}

            def begin():
                if not begun:
                    begun.append(self.head(rule.get("status", 200), {**kind, **more}))

            def flow(part):
                begin()
                self.wfile.write(part)

            def put(line, part=1, *drip):
                if line is None:
                    self.close_connection = True
                    return os._exit(rule["exit"]) if "exit" in rule else None
                begin()
                body = b"event: message\ndata: " + line + b"\n\n" if stream else line
                for piece in pieces(body, part, *drip):
                    self.wfile.write(piece)

            act(rule, message, content, put, flow)

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_):
            pass

    old = open(port_file).read() if os.path.exists(port_file) else ""
    http = Quiet(("127.0.0.1", urlsplit(old).port or 0), Handler)
    with open(f"{port_file}.new", "w") as f:
        f.write(f"http://127.0.0.1:{http.server_port}/mcp")
    os.rename(f"{port_file}.new", port_file)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    while os.read(0, 4096):
        pass
    server.end()


def main(path, http=None, port_file=None):
    signal.alarm(LIFETIME)
    server = Server(os.path.abspath(path))
    server.start()
    if http:
        serve_http(server, port_file)
    else:
        serve_stdio(server)


if __name__ == "__main__":
    if len(sys.argv) != 2 and sys.argv[2:3] != ["--http"]:
        sys.exit(__doc__)
    main(*sys.argv[1:])

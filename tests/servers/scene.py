"""What a scene of scripted.py (its docstring is the manual) says: skills and the regular answers."""

import base64
import hashlib
import json
from urllib.parse import quote

EXTENSION = "io.modelcontextprotocol/skills"
SERVER_INFO = {"name": "scripted", "version": "1.0.0"}


class Refusal(Exception):
    """A JSON-RPC error as the regular answer."""

    def __init__(self, code, message, **more):
        self.error = {"code": code, "message": message, **more}


def data(spec):
    if isinstance(spec, str):
        return spec.encode()
    if isinstance(spec, list):
        return b"".join(map(data, spec))
    if "b64" in spec:
        return base64.b64decode(spec["b64"])
    if "fill" in spec:
        fill = spec["fill"].encode()
        return (fill * (spec["size"] // len(fill) + 1))[: spec["size"]]
    return spec["text"].encode()


def laid_over(base, changes):
    merged = {**base, **changes}
    return {k: v for k, v in merged.items() if not (k in changes and v is None)}


def plain_frontmatter(skill_md):
    block = skill_md.decode("utf-8", "replace").replace("\r\n", "\n").split("---\n")[1:2]
    pairs = (line.split(":", 1) for line in "".join(block).split("\n") if ":" in line)
    return {k.strip(): v.strip() for k, v in pairs}


def copies(files):
    for path, file in files.items():
        if isinstance(file, dict) and "times" in file:
            yield from ((f"{path}-{n}", file) for n in range(file["times"]))
        else:
            yield path, file


class Scene:
    """A parsed scene: entries, and the DATA and options behind each URI; bytes are made when asked for."""

    def __init__(self, text):
        self.spec = json.loads(text)
        self.listing, self.entries, self.served = [], {}, {}
        for skill in self.spec.get("skills", []):
            self.add(skill)
        self.listing += self.spec.get("entries", [])

    def add(self, skill):
        uri = skill.get("uri") or f"skill://{quote(skill['path'])}/SKILL.md"
        folder = uri.rsplit("/", 1)[0]
        name = folder.rsplit("/", 1)[1]
        files = {"SKILL.md": f"---\nname: {name}\ndescription: A scripted skill\n---\n\nBody of {name}.\n"}
        files.update(skill.get("files", {}))
        rows = []
        for path, file in copies(files):
            options = file if isinstance(file, dict) else {}
            content = data(file)
            file_uri = options.get("uri", f"{folder}/{quote(path)}")
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            if options.get("listed", True):
                rows.append(laid_over({"uri": file_uri, "digest": digest, "size": len(content)}, options.get("row", {})))
            self.served[file_uri] = (options.get("serve", file), options)
        front = plain_frontmatter(data(files["SKILL.md"]))
        entry = {"uri": uri, "frontmatter": front, "resources": rows + skill.get("rows", [])}
        self.entries[uri] = laid_over(entry, skill.get("entry", {}))
        if skill.get("listed", True):
            self.listing.append(self.entries[uri])

    # ---- the regular answers ----

    def answer(self, method, params, rule):
        era, spec = self.spec.get("era", "modern"), self.spec
        if method == "server/discover" and era != "legacy":
            meta = {"io.modelcontextprotocol/serverInfo": SERVER_INFO}
            return {"supportedVersions": ["2026-07-28"], "capabilities": self.capabilities(), "_meta": meta}
        if method == "initialize" and era != "modern":
            return {"protocolVersion": "2025-11-25", "capabilities": self.capabilities(), "serverInfo": SERVER_INFO}
        if method == "ping":
            return {}
        if method == "skills/list":
            return self.page(params.get("cursor"))
        if method == "skills/get":
            if params.get("uri") not in self.entries:
                raise Refusal(-32602, f"Unknown skill: {params.get('uri')}")
            return {"skill": self.entries[params["uri"]]}
        if method == "resources/read":
            return {"contents": rule["contents"] if "contents" in rule else [self.content(params.get("uri"), rule)]}
        if method == "resources/directory/read" and spec.get("directoryRead"):
            return {"resources": self.children(params.get("uri", ""))}
        raise Refusal(-32601, f"Method not found: {method}")

    def capabilities(self):
        settings = {"directoryRead": True} if self.spec.get("directoryRead") else {}
        return self.spec.get("capabilities", {"resources": {}, "extensions": {EXTENSION: settings}})

    def page(self, cursor):
        kind, size = self.spec.get("cursors"), self.spec.get("page") or max(len(self.listing), 1)
        if kind == "repeat":
            return {"skills": self.listing[:size], "nextCursor": "again"}
        if cursor is not None and not (isinstance(cursor, str) and cursor.isdigit()):
            raise Refusal(-32602, f"Unknown cursor: {cursor}")
        at = int(cursor or 0)
        more = kind in ("endless", "new") or at + size < len(self.listing)
        skills = self.listing[at : at + size]
        if kind == "new" and not skills:
            name = f"new-{at}"
            uri = f"skill://{name}/SKILL.md"
            row = {"uri": uri, "digest": "sha256:" + "0" * 64, "size": 1}
            skills = [{"uri": uri, "frontmatter": {"name": name, "description": "d"}, "resources": [row]}]
        return {"skills": skills, **({"nextCursor": str(at + size)} if more else {})}

    def content(self, uri, rule):
        if "serve" not in rule and uri not in self.served:
            raise Refusal(-32602, f"Unknown resource: {uri}")
        spec, options = self.served.get(uri, ("", {}))
        content = data(rule.get("serve", spec))
        answer = {"uri": uri, "mimeType": options.get("mime")}
        try:
            kind, value = "text", content.decode()
        except UnicodeDecodeError:
            kind = "blob"
        if "blob" in (kind, options.get("as")):
            kind, value = "blob", base64.b64encode(content).decode()
        return {k: v for k, v in {**answer, kind: value}.items() if v is not None}

    def children(self, uri):
        folder, children = uri.rstrip("/") + "/", {}
        for file, (spec, _) in self.served.items():
            if not file.startswith(folder):
                continue
            name, _, below = file[len(folder) :].partition("/")
            about = {"mimeType": "inode/directory"} if below else {"size": len(data(spec))}
            children[name] = {"uri": folder + name, "name": name, **about}
        if not children:
            raise Refusal(-32602, f"Not a directory: {uri}")
        return list(children.values())

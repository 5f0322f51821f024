"""A stand-in for the Hugging Face Hub on loopback: the routes that huggingface_hub asks for."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

TOKEN = "hf_standin"
_LARGE = 2000


@dataclass
class Repository:
    """Commits by their hash, each with all its files; branches by name."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(
        self, files: dict[str, bytes], branch: str = "main", message: str = ""
    ) -> str:
        about = repr((sorted(files), [sha1(f).hexdigest() for f in files.values()]))
        name = sha1(f"{len(self.commits)}{about}".encode()).hexdigest()
        self.commits[name], self.branches[branch] = dict(files), name
        self.messages.append(message)
        return name

    def find(self, revision: str) -> str | None:
        found = self.branches.get(revision, revision)
        return found if found in self.commits else None

    def files(self, branch: str = "main") -> dict[str, bytes]:
        return self.commits[self.branches[branch]]


@dataclass
class Hub:
    """What the stand-in keeps, and what it was asked for."""

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def make(self, name: str, files: dict[str, bytes], **how) -> str:
        repository = self.repositories.setdefault(name, Repository(**how))
        return repository.commit(files)

    def fetched(self) -> list[str]:
        """The files that were fetched, without asking for their headers alone."""
        found = (re.search(r"^GET /.+/resolve/[^/]+/(.+)$", line) for line in self.asked)
        return [unquote(match[1]) for match in found if match]


class _Refused(Exception):
    pass


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def do_GET(self):
        self._serve()

    def do_HEAD(self):
        self._serve()

    def do_POST(self):
        self._serve()

    def do_PUT(self):
        self._serve()

    def _serve(self):
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            self.body = self._read_chunks()
        with self.hub.lock:
            self.hub.asked.append(f"{self.command} {path}")
            try:
                self._route(path)
            except _Refused:
                return

    def _read_chunks(self):
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _route(self, path):
        for pattern, answer in (
            (r"/api/repos/create", self._create),
            (r"/api/validate-yaml", self._validate),
            (r"/api/models/(\S+?/\S+?)/branch/(.+)", self._branch),
            (r"/api/models/(\S+?/\S+?)/preupload/(.+)", self._preupload),
            (r"/api/models/(\S+?/\S+?)/commit/(.+)", self._commit),
            (r"/api/models/(\S+?/\S+?)/revision/(.+)", self._info),
            (r"/api/models/(\S+?/\S+?)/tree/([^/]+)", self._tree),
            (r"/(\S+?/\S+?)\.git/info/lfs/objects/batch", self._batch),
            (r"/lfs/([0-9a-f]+)", self._store),
            (r"/(\S+?/\S+?)/resolve/([^/]+)/(.+)", self._resolve),
        ):
            match = re.fullmatch(pattern, path)
            if match:
                answer(*match.groups())
                return
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)", path)
        if match:
            self._info(match[1], "main")
            return
        self._refuse(404, "EntryNotFound", f"no route {path}")

    def _create(self):
        self._require_token()
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or 'user'}/{asked['name']}"
        address = {"url": f"{self.hub.endpoint}/{name}"}
        if name in self.hub.repositories:
            self._say(address, 409)
            return
        # Later versions of huggingface_hub say so in another word.
        private = asked.get("visibility") == "private" or bool(asked.get("private"))
        repository = Repository(private=private)
        repository.commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.hub.repositories[name] = repository
        self._say(address)

    def _branch(self, name, branch):
        repository = self._find(name, write=True)
        if branch in repository.branches:
            self._refuse(409, "", "reference already exists")
        repository.branches[branch] = repository.branches["main"]
        self._say({})

    def _validate(self):
        content = json.loads(self.body)["content"]
        found = [] if content.startswith("---\n") else [{"message": "no head"}]
        self._say({"errors": found, "warnings": []})

    def _preupload(self, name, _):
        self._find(name, write=True)
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] > _LARGE else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        self._say({"files": files})

    def _batch(self, name):
        self._find(name, write=True)
        objects = [
            {
                **asked,
                "authenticated": True,
                "actions": {"upload": {"href": f"{self.hub.endpoint}/lfs/{asked['oid']}"}},
            }
            for asked in json.loads(self.body)["objects"]
        ]
        self._say({"transfer": "basic", "objects": objects})

    def _store(self, digest):
        if sha256(self.body).hexdigest() != digest:
            self._refuse(400, "", "another digest")
        self.hub.stored[digest] = self.body
        self._say({})

    def _commit(self, name, branch):
        repository = self._find(name, write=True)
        files, message = dict(repository.files(branch)), ""
        for line in self.body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        made = repository.commit(files, branch, message)
        address = f"{self.hub.endpoint}/{name}/commit/{made}"
        self._say({"success": True, "commitOid": made, "commitUrl": address})

    def _info(self, name, revision):
        repository = self._find(name)
        commit = self._find_commit(repository, revision)
        files = repository.commits[commit]
        self._say(
            {
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repository.private,
                "tags": [],
                "siblings": [{"rfilename": path} for path in sorted(files)],
            }
        )

    def _tree(self, name, revision):
        repository = self._find(name)
        files = repository.commits[self._find_commit(repository, revision)]
        entries = []
        for path, content in sorted(files.items()):
            entry = {"type": "file", "path": path, "size": len(content)}
            entry["oid"] = sha1(content).hexdigest()
            if len(content) > _LARGE:
                digest = sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self._say(entries)

    def _resolve(self, name, revision, path):
        repository = self._find(name)
        commit = self._find_commit(repository, revision)
        content = repository.commits[commit].get(path)
        if content is None:
            self._refuse(404, "EntryNotFound", "no such file")
        large = len(content) > _LARGE
        etag = sha256(content).hexdigest() if large else sha1(content).hexdigest()
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit}
        if large:
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        self._send(200, content, headers)

    def _find(self, name, *, write=False):
        repository = self.hub.repositories.get(name)
        if write or (repository is not None and repository.private):
            self._require_token()
        if repository is None:
            self._refuse(404, "RepoNotFound", "Repository not found")
        return repository

    def _find_commit(self, repository, revision):
        commit = repository.find(revision)
        if commit is None:
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
        return commit

    def _require_token(self):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "", "Invalid username or password.")

    def _refuse(self, status, code, message):
        headers = {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        self._send(status, json.dumps({"error": message}).encode(), headers)
        raise _Refused

    def _say(self, value, status=200):
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status, content, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def run_hub() -> Iterator[Hub]:
    """Run the stand-in while the context lasts."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use_hub(monkeypatch, endpoint, cache):
    """Point huggingface_hub at the stand-in, and at a cache of its own."""
    # What HF_ENDPOINT and the like set while it is imported.
    for name, value in {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint
        + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(cache),
        # Large files go by LFS: the stand-in has no Xet.
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

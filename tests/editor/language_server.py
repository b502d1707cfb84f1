"""The YAML language server that editors use, asked as an editor asks it: JSON-RPC over its standard streams."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parents[2] / ".npm-language-server" / "node_modules" / ".bin" / "yaml-language-server"
"""Where `make language-server` puts it."""
PATIENCE_S = 60.0
# Every connection fails, as without a network.
_OFFLINE = """\
require('net').Socket.prototype.connect = function () {
  process.nextTick(() => this.destroy(Object.assign(new Error('there is no network'), {code: 'ENETUNREACH'})));
  return this;
};
"""


class LanguageServer:
    """What an editor sees. One document at a time is waited for; messages about others are passed over."""

    def __init__(self, process: subprocess.Popen[bytes], root: Path) -> None:
        self._process = process
        self._came: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._asked = 0
        threading.Thread(target=self._listen, daemon=True).start()
        self._ask("initialize", {"processId": os.getpid(), "rootUri": root.as_uri(), "capabilities": {}})
        self._send(method="initialized", params={})

    def diagnose(self, file: Path) -> list[tuple[int, str]]:
        """Open a document: each flaw that the editor underlines, by line (from 1) and words."""
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": file.read_text()}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        while True:
            came = self._next()
            if came.get("method") == "textDocument/publishDiagnostics" and came["params"]["uri"] == file.as_uri():
                return [(row["range"]["start"]["line"] + 1, row["message"]) for row in came["params"]["diagnostics"]]

    def describe(self, file: Path, line: int, column: int) -> str:
        """What the editor shows for the word under the pointer."""
        found = self._ask("textDocument/hover", self._position(file, line, column))
        return "" if found is None else str(found["contents"]["value"])

    def complete(self, file: Path, line: int, column: int) -> set[str]:
        """What the editor offers to write there."""
        found = self._ask("textDocument/completion", self._position(file, line, column))
        return {item["label"] for item in found["items"]}

    @staticmethod
    def _position(file: Path, line: int, column: int) -> dict[str, Any]:
        return {"textDocument": {"uri": file.as_uri()}, "position": {"line": line - 1, "character": column}}

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._asked += 1
        self._send(id=self._asked, method=method, params=params)
        while True:
            came = self._next()
            if came.get("id") == self._asked and "method" not in came:
                return came["result"]

    def _next(self) -> dict[str, Any]:
        came = self._came.get(timeout=PATIENCE_S)
        if came.get("method") == "workspace/configuration":  # nothing is set: as an editor comes
            self._send(id=came["id"], result=[None for _ in came["params"]["items"]])
        return came

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        stream = self._process.stdout
        while header := stream.readline():
            length = 0
            while header.strip():
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
                header = stream.readline()
            self._came.put(json.loads(stream.read(length)))


@contextmanager
def offline_server(root: Path, scratch: Path) -> Iterator[LanguageServer]:
    """A server for the files of `root` that reaches no network; ended afterwards."""
    offline = scratch / "offline.js"
    offline.write_text(_OFFLINE)
    env = {**os.environ, "NODE_OPTIONS": f"--require {offline}"}
    with subprocess.Popen(
        [PROGRAM, "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=env
    ) as process:
        try:
            yield LanguageServer(process, root)
        finally:
            process.kill()

"""Every command as somebody would type it, and all that can be wrong with what it is given."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.cli.conftest import call_agentos
from tests.cli.sample import begin, make_repository

RUN, CUT, TASK, GATE, FILE, EXPORTED, OUT = "<run>", "<cut>", "<task>", "<gate>", "<file>", "<exported>", "<out>"
COPY = "<copy>"
"""Of the database."""
SNAP = "<snap>"
"""A checkpoint with a snapshot of files."""


class Typed(NamedTuple):
    """A command line with places to fill, and what it needs around it."""

    words: tuple[str, ...]
    opens: bool = False
    """The database."""
    locates: bool = False
    """Where state lives, without opening it."""
    nowhere: int = 1
    """Exit code where that cannot be settled."""


def opening(*words: str, nowhere: int = 1) -> Typed:
    return Typed(words, opens=True, locates=True, nowhere=nowhere)


COMMANDS: dict[str, tuple[Typed, ...]] = {
    "init": (Typed(("init", "fresh"), locates=True),),
    "check": (Typed(("check", FILE)),),
    "prove": (Typed(("prove", FILE)),),
    "graph": (Typed(("graph", FILE)), opening("graph", RUN, nowhere=2)),
    "schema": (Typed(("schema", "list")),),
    "help": (Typed(("help",)),),
    "run": (opening("run", FILE), opening("run", FILE, "--id", "another", "--params", FILE)),
    "resume": (
        opening("resume", RUN),
        opening("resume", RUN, "--dry-run"),
        opening("resume", "ended", "--rerun", TASK),
    ),
    "fork": (opening("fork", CUT), opening("fork", SNAP, "--worktree", "aside")),
    "watch": (opening("watch", RUN), opening("watch")),
    "ui": (opening("ui", "--static", RUN), opening("ui", "--static", RUN, "-o", OUT)),
    "worker": (opening("worker", "--once"), opening("worker", "--once", "--json")),
    "submit": (opening("submit", FILE), opening("submit", FILE, "--id", "submitted", "--params", FILE)),
    # It wants a workflow that says when it runs: tests/cli/test_schedule.py has those.
    "schedule add": (Typed(("schedule", "add", "--help")),),
    "schedule list": (opening("schedule", "list"), opening("schedule", "list", "--json")),
    "schedule remove": (Typed(("schedule", "remove", "--help")),),
    "cluster local": (Typed(("cluster", "local", "--help")),),
    "worker install": (Typed(("worker", "install"), locates=True),),
    "issue": (opening("issue", "--brief", FILE, "--dry-run"),),
    "demo": (Typed(("demo",)),),
    "list": (opening("list"), opening("list", "--all", "--json")),
    "inbox": (opening("inbox"), opening("inbox", "--json")),
    "show": (opening("show", RUN), opening("show", RUN, "--json")),
    "logs": (opening("logs", RUN), opening("logs", "ended", TASK), opening("logs", RUN, "-f", "--json")),
    "events": (opening("events", RUN), opening("events", RUN, "--follow"), opening("events", RUN, "--json")),
    "why": (opening("why", RUN, "one"), opening("why", "ended", TASK, "--json")),
    "checkpoints": (opening("checkpoints", RUN), opening("checkpoints", RUN, "--json")),
    "diff": (
        opening("diff", RUN, "ended"),
        opening("diff", "ended", CUT, "--json"),
        opening("diff", SNAP, "edits", "-p"),
    ),
    "restore": (opening("restore", SNAP), opening("restore", SNAP, "--dry-run", "--json")),
    "undo": (opening("undo"), Typed(("undo", "--list"), locates=True)),
    "purge": (Typed(("purge", "made.txt", "--yes"), locates=True),),
    "approve": (opening("approve", RUN, "--no-resume"), opening("approve", "waits", GATE)),
    "reject": (opening("reject", RUN), opening("reject", "waits", GATE)),
    "pause": (opening("pause", RUN),),
    "abort": (opening("abort", RUN),),
    "send": (opening("send", RUN, "pause"), opening("send", "waits", "skip_layer", "layer=77")),
    "trace": (opening("trace", RUN, "--otlp", "-"), opening("trace", RUN, "--otlp", OUT, "--json")),
    "mcp": (Typed(("mcp", "--skill")),),
    "completion": (Typed(("completion", "bash")),),
    "prune": (opening("prune", RUN), opening("prune", "--all", "--json")),
    "delete": (opening("delete", RUN, "--yes"), opening("delete", RUN, "--yes", "--json")),
    "export": (opening("export", RUN, "-o", OUT), opening("export", RUN, "-o", "-")),
    "import": (opening("import", EXPORTED, "--id", "taken-in"),),
    "db path": (Typed(("db", "path"), locates=True),),
    "db stats": (opening("db", "stats"), opening("db", "stats", "--json")),
    "db migrate": (opening("db", "migrate"),),
    "db restore": (Typed(("db", "restore", COPY), locates=True),),
    "db backup": (opening("db", "backup", OUT, "--force"), opening("db", "backup", OUT, "--json")),
    "doctor": (opening("doctor"), opening("doctor", "--json")),
    "trust": (Typed(("trust",)), Typed(("trust", "--list"))),
}
"""By name as typed. A test holds it complete."""

EDITS = "name: edits\ntasks: {write: {run: 'echo made >> made.txt'}}\n"
TIDY = "name: tidy\nparams: {depth: 1}\ntasks: {sweep: {run: 'true', effects: none}}\n"


def make_place(root: Path) -> dict[str, str]:
    """A repository with runs that wait and that ended, a workflow, and an exported run; what to fill lines with."""
    make_repository(root)
    (root / "tidy.yaml").write_text(TIDY)
    (root / "edits.yaml").write_text(EDITS)
    (root / "depth.yaml").write_text("depth: 2\n")
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@localhost")
    subprocess.run(["git", *who, "commit", "--quiet", "-m", "first"], cwd=root, check=True)
    begin(root, "flow", "waits", expected="waiting")
    begin(root, "good", "ended", expected="complete")
    begin(root, "good", "ended-too", expected="complete")
    code, _, err = call_agentos("export", "ended", "-o", root / "run.jsonl", cwd=root)
    assert code == 0, err
    code, _, err = call_agentos("run", "edits.yaml", "--id", "edits", "-q", cwd=root)
    assert code == 0, err
    [snap] = json.loads(call_agentos("checkpoints", "edits", "--json", cwd=root)[1])
    (root / "made.txt").write_text("mine\n")
    code, _, err = call_agentos("db", "backup", root.parent / "copy.db", cwd=root)
    assert code == 0, err
    code, _, err = call_agentos("restore", snap["id"], cwd=root)
    assert code == 0, err
    [first, *_] = json.loads(call_agentos("checkpoints", "ended", "--json", cwd=root)[1])
    return {
        RUN: "ended",
        CUT: first["id"],
        SNAP: snap["id"],
        TASK: "one",
        GATE: "approve:ship",
        FILE: "tidy.yaml",
        EXPORTED: "run.jsonl",
        COPY: "../copy.db",
        OUT: "out.jsonl",
    }


LINES = [(name, line) for name, lines in COMMANDS.items() for line in lines]

TEXTS = {
    "unknown": "nosuch",
    "empty": "",
    "slash": "no/such",
    "newline": "two\nlines",
    "escapes": "\x1b[2J\x1b]0;owned\x07[red]",
    "reversed": "\u202etxt.exe",
    "very long": "a" * 100_000,
    "wide": "🙂" * 5_000,
    "not UTF-8": "\udcff\udcfe",
    "SQL": "' OR 1=1 --",
    "a pattern": "%",
    "a path": "../../../etc/passwd",
    "like an option": "-x",
    "like help": "--help",
}
"""What may stand where an id or a name is asked for; none of them names anything."""

YAML_FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 50,
    "zeros": b"\0" * 5_000,
    "not UTF-8": b"name: \xff\xfe\ntasks: {}\n",
    "UTF-16": "name: x\ntasks: {a: {run: 'true'}}\n".encode("utf-16"),
    "a word": b"hello",
    "10 MB": b"name: x\ntasks:\n" + b"".join(b"  t%d: {run: 'echo %s'}\n" % (n, b"x" * 60) for n in range(130_000)),
    "10 MB in one word": b"a" * 10_500_000,
    "deep lists": b"name: x\ntasks: " + b"[" * 100_000,
    "deep maps": b"tasks:\n" + b"".join(b" " * n + b"a:\n" for n in range(1, 3_000)),
    "exploding aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 9)) for n in range(12))
    + b"tasks: *m\n",
    "an alias inside itself": b"name: x\nparams: &p {a: *p}\ntasks: {b: {run: 'true'}}\n",
    "duplicate keys": b"name: x\nname: y\ntasks: {a: {run: 'true', run: 'false'}, a: {run: 'true'}}\n",
    "a cycle": b"name: x\ntasks: {a: {run: 'true', needs: b}, b: {run: 'true', needs: [a]}}\n",
    "unknown kinds": b"name: x\ntasks: {a: {walk: 'true'}, b: {kind: banana}, c: {}}\n",
    "wrong types": b"name: [x]\nmax_concurrency: many\nsecrets: 3\ntasks: {a: {run: 3, retries: -1}, 5: 7, null: []}\n",
    "a tag that runs code": b"name: !!python/object/apply:os.system ['touch owned']\ntasks: {a: {run: 'true'}}\n",
    "two documents": b"name: x\n---\nname: y\n",
    "ids with newlines": b'name: x\ntasks: {"a\\nb": {run: "true"}, "\\e[2J": {run: "true"}, "": {run: "true"}}\n',
    "endless parentheses": b"name: x\ntasks: {a: {run: 'true', if: '%s'}}\n" % (b"(" * 20_000),
    "an endless reference": b"name: x\ntasks: {a: {run: 'echo ${{ tasks.%sb }}'}}\n" % (b"a." * 20_000),
}
"""Files that no workflow is read from."""

PYTHON_FILES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 50,
    "no Python": b"def (",
    "raises": b"raise ValueError('\x1b[2J\\x1b[2J\\nsecond line')",
    "exits": b"import sys; sys.exit(0)",
    "raises what is no Exception": b"class E(BaseException): pass\nraise E('x')",
    "raises without a text": b"class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E",
    "recursion": b"def f(): f()\nf()",
    "a missing module": b"import no_such_module_anywhere",
    "a run of its own": b"from agentos import Workflow, run\nflow = Workflow('w')\nflow.add('a', print)\nrun(flow)\n",
}


def filled(line: Typed, good: dict[str, str]) -> list[str]:
    words = [good.get(word, word) for word in line.words]
    if "--params" in words:
        words[-1] = "depth.yaml"
    return words


def tell_tale(err: str) -> list[str]:
    """What is wrong with a message, whatever it is about."""
    wrong = []
    if "Traceback" in err or "bug in AgentOS" in err:
        wrong.append("a traceback")
    if len(err) > 4_000:
        wrong.append(f"{len(err)} characters")
    if any(not (character.isprintable() or character == "\n") for character in err):
        wrong.append("control characters")
    return wrong


# --- places ----------------------------------------------------------------------------------------------------------


def database(root: Path) -> Path:
    return root / ".agentos" / "issue_workflow.db"


def _sql(statement: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        connection = sqlite3.connect(database(root))
        with connection:
            connection.execute(statement)
        connection.close()

    return change


def _half(root: Path) -> None:
    database(root).write_bytes(database(root).read_bytes()[:6_000])


def _foreign(root: Path) -> None:
    database(root).unlink()
    _sql("CREATE TABLE theirs (x)")(root)


BROKEN_DATABASES: dict[str, tuple[Callable[[Path], object], int, str]] = {
    "damaged": (_half, 6, "is damaged"),
    "of a newer version": (_sql("PRAGMA user_version = 99"), 6, "schema 99"),
    "another program's": (_foreign, 1, "issue_workflow.db"),
    "no database": (lambda root: database(root).write_bytes(b"hello there " * 500), 1, "issue_workflow.db"),
}
"""What becomes of it, the exit code of whoever opens it, and a word of the message."""


def _folder_is_a_file(root: Path) -> None:
    shutil.rmtree(root / ".agentos")
    (root / ".agentos").write_text("x")


def _folder_is_a_link(root: Path) -> None:
    (root / ".agentos").rename(root / "elsewhere")
    (root / ".agentos").symlink_to("elsewhere")


def _database_is_a_pipe(root: Path) -> None:
    database(root).unlink()
    os.mkfifo(database(root))


def _database_is_a_directory(root: Path) -> None:
    database(root).unlink()
    database(root).mkdir()


def _tracked(root: Path) -> None:
    subprocess.run(["git", "add", "-f", ".agentos"], cwd=root, check=True)


def _bare(root: Path) -> None:
    shutil.rmtree(root / ".git")
    subprocess.run(["git", "init", "--quiet", "--bare", ".git"], cwd=root, check=True)


def _dangling(root: Path) -> None:
    shutil.rmtree(root / ".git")
    (root / ".git").write_text("gitdir: /nowhere\n")


def _settings(content: bytes) -> Callable[[Path], object]:
    return lambda root: (root / "agentos.toml").write_bytes(content)


NO_PLACES: dict[str, Callable[[Path], object]] = {
    "no repository": lambda root: shutil.rmtree(root / ".git"),
    "a bare repository": _bare,
    "a worktree whose repository is gone": _dangling,
    "a file instead of the folder": _folder_is_a_file,
    "a link instead of the folder": _folder_is_a_link,
    "a pipe instead of the database": _database_is_a_pipe,
    "a directory instead of the database": _database_is_a_directory,
    "a folder that git tracks": _tracked,
    "settings that are no TOML": _settings(b"keep = [[\n"),
    "binary settings": _settings(bytes(range(256))),
    "settings that are a directory": lambda root: (root / "agentos.toml").mkdir(),
    "a database outside of the repository": _settings(b"database = '../elsewhere/x.db'\n"),
    "a database of an unknown kind": _settings(b"database = 'mysql://x/y'\n"),
}
"""Places where nothing can be kept."""


@contextmanager
def changed(root: Path, change: Callable[[Path], object]) -> Iterator[None]:
    """The place is another one meanwhile, and afterwards as it was: runs know where they belong."""
    kept = root.with_name(f"{root.name}.kept")
    root.rename(kept)
    try:
        shutil.copytree(kept, root, symlinks=True)
        change(root)
        yield
    finally:
        shutil.rmtree(root)
        kept.rename(root)


def fingerprint(root: Path) -> dict[str, str]:
    """All that a command which fails must leave as it was: each file's bytes, of our database each row."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        # Python keeps what it has compiled beside the workflow that it imports.
        if name.startswith(".git/") or name.endswith(("-wal", "-shm")) or "__pycache__" in name:
            continue
        mode = path.lstat().st_mode
        sound = path == database(root) and path.is_file() and not path.is_symlink()
        content = (_rows(path) or path.read_bytes()) if sound else path.read_bytes() if path.is_file() else b""
        found[name] = f"{mode:o} {hashlib.sha256(content).hexdigest()}"
    return found


def _rows(path: Path) -> bytes:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    connection.text_factory = bytes
    try:
        # A lease that was taken, and let go of since nothing could be done with it, counts up its token.
        runs = "SELECT no, id, status, layer, epoch, sequence, digest, plan_revision, updated_at, source, root FROM run"
        tables = (runs, *(f"SELECT * FROM {name}" for name in ("event", "blob", "plan", "checkpoint", "inbox")))
        return repr([connection.execute(query).fetchall() for query in tables]).encode()
    except sqlite3.DatabaseError:
        return b""
    finally:
        connection.close()

"""LangGraph's own tests over our saver: `python tools/langgraph_suite.py FOLDER [pytest's arguments]`.

Its source distribution brings them along. They are run in an environment of their own in FOLDER, with the versions of
LangGraph that this interpreter has, and with our saver wherever a test asks for any checkpointer: plain and encrypting,
blocking and asynchronous. AGENTOS_WORKFLOW_DB may name a PostgreSQL server; each test has a repository of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
THEIRS = ("langgraph", "langgraph-checkpoint", "langgraph-prebuilt", "langgraph-sdk", "langchain-core")
NEEDED = (
    "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres", "psycopg-pool", "pytest<9", "pytest-mock",
    "pytest-xdist", "syrupy", "redis", "httpx", "pycryptodome",
)  # fmt: skip
OURS = """
import os, subprocess, tempfile
from contextlib import asynccontextmanager, contextmanager
from agentos.langgraph import AgentosSaver, AsyncAgentosSaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer


@contextmanager
def repository():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        yield folder


@contextmanager
def _checkpointer_memory():
    with repository() as folder, AgentosSaver.open(folder) as saver:
        yield saver


@contextmanager
def _checkpointer_sqlite_aes():
    serde = EncryptedSerializer.from_pycryptodome_aes(key=b"1234567890123456")
    with repository() as folder, AgentosSaver.open(folder, serde=serde) as saver:
        yield saver


@asynccontextmanager
async def _checkpointer_sqlite_aio():
    with repository() as folder:
        async with AsyncAgentosSaver.open(folder) as saver:
            yield saver
"""
SYNC, ASYNC = ('"memory",\n        "sqlite",\n        "sqlite_aes",', '"memory",\n        "sqlite_aio",')


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    python = folder / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    same = [f"{name}=={version(name)}" for name in THEIRS]
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", *same, *NEEDED, f"{ROOT}[langgraph,postgres]"], check=True)
    source: list[str | Path] = [
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "langgraph",
        "--dest",
        folder,
        same[0],
    ]
    subprocess.run([*pip, *source], check=True)
    tests = take_tests(folder)
    asked = [str(path) for path in sorted(tests.glob("test_*.py")) if "sync_checkpointer" in path.read_text()]
    if not asked:
        raise SystemExit("none of LangGraph's tests asks for a checkpointer: they were changed, see take_tests")
    argv: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "--snapshot-warn-unused",
        *asked,
        *sys.argv[2:],
    ]
    env = {**os.environ, "NO_DOCKER": "true", "HOME": str(folder), "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(argv, cwd=tests.parent, env=env).returncode


def take_tests(folder: Path) -> Path:
    """LangGraph's tests, with our saver in the place of each of theirs."""
    with tarfile.open(folder / f"langgraph-{version('langgraph')}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    tests = folder / f"langgraph-{version('langgraph')}" / "tests"
    (tests / "conftest_ours.py").write_text(OURS)
    conftest = (tests / "conftest.py").read_text()
    if conftest.count(SYNC) < 1 or conftest.count(ASYNC) < 1:
        raise SystemExit("LangGraph's tests name their checkpointers otherwise now: mend tools/langgraph_suite.py")
    conftest = conftest.replace(SYNC, '"memory",\n        "sqlite_aes",', 1).replace(ASYNC, '"sqlite_aio",', 1)
    (tests / "conftest.py").write_text(
        f"{conftest}\n\nfrom tests.conftest_ours import (  # noqa: E402\n"
        "    _checkpointer_memory,\n    _checkpointer_sqlite_aes,\n    _checkpointer_sqlite_aio,\n)\n"
    )
    return tests


if __name__ == "__main__":
    sys.exit(main())

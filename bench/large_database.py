"""A large database to look at: `python -m bench.large_database FOLDER [--url URL] [--runs N] [--waiting N]`.

FOLDER becomes a repository with it in it. Runs that wait are made by AgentOS itself, each in a process like any other;
of one complete run and one failed run so many copies are made in SQL, with their events (about fifty each): writing
them through the store would take hours. So copies have no sound digests; nothing that is measured here reads those.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agentos import Workflow, run
from bench.work import git_repository

TASKS = 9
FAILED_EACH = 100
"""One in so many copies is of the failed run."""
RARE = 5
"""So many copies have the label `rare`, all others `common`."""
YEAR_US = 365 * 86_400 * 1_000_000

_COLUMNS = "name, kind, layer, layers, epoch, sequence, digest, plan_revision, token, source, root, host, fingerprint"
_COPY_RUNS = """
INSERT INTO run (id, status, labels, holder, created_at, updated_at, {columns}, {lease}{scope_to})
SELECT 'copy-' || substr('0000000' || g.no, -7), t.status,
       CASE WHEN g.no % {rare} = 7 THEN '["rare"]' ELSE '["common"]' END, NULL,
       t.created_at - {year} / {runs} * g.no, t.updated_at - {year} / {runs} * g.no, {columns}, {none}{scope}
FROM numbers AS g JOIN run AS t ON t.id = CASE WHEN g.no % {failed} = 3 THEN 'template-failed' ELSE 'template-done' END
"""
_SQLITE_NUMBERS = "WITH RECURSIVE numbers (no) AS (SELECT 1 UNION ALL SELECT no + 1 FROM numbers WHERE no < {runs})"
_SQLITE_EVENTS = """
INSERT INTO event (no, at, type, version, body, blob, digest)
SELECT (r.no << 40) + e.seq, e.at, e.type, e.version, e.body, e.blob, e.digest
FROM run AS r JOIN run AS t ON t.id = CASE r.status WHEN 'failed' THEN 'template-failed' ELSE 'template-done' END
JOIN event AS e ON e.no > t.no << 40 AND e.no < (t.no + 1) << 40 WHERE r.id LIKE 'copy-%' ORDER BY r.no, e.seq
"""
_POSTGRES_EVENTS = """
INSERT INTO event (run, seq, at, type, version, body, plain, blob, digest)
SELECT r.no, e.seq, e.at, e.type, e.version, e.body, e.plain, e.blob, e.digest
FROM run AS r JOIN run AS t ON t.id = CASE r.status WHEN 'failed' THEN 'template-failed' ELSE 'template-done' END
JOIN event AS e ON e.run = t.no WHERE r.id LIKE 'copy-%' ORDER BY r.no, e.seq
"""
_CUTS = """
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot)
SELECT c.id || '-' || r.id, r.no, c.sequence, c.layer, c.at, c.digest, ''
FROM run AS r JOIN run AS t ON t.id = CASE r.status WHEN 'failed' THEN 'template-failed' ELSE 'template-done' END
JOIN checkpoint AS c ON c.run = t.no WHERE r.id LIKE 'copy-%'
"""
_AFTERWARDS = {
    # Tables that came with schema 2; what a store would have written into them.
    "label": "INSERT INTO label (label, {scope_to}created_at, run) "
    "SELECT substr(labels, 3, length(labels) - 4), {scope}created_at, no FROM run WHERE id LIKE 'copy-%'",
    "task_left": "INSERT INTO task_left (status, run) SELECT l.status, r.no FROM run AS r "
    "JOIN run AS t ON t.id = 'template-failed' JOIN task_left AS l ON l.run = t.no "
    "WHERE r.id LIKE 'copy-%' AND r.status = 'failed'",
}


def chain(fails: bool = False) -> Workflow:
    """Tasks one after another, so that each layer has its own events."""
    flow = Workflow("chain")
    for number in range(TASKS):
        needs = [f"t{number - 1}"] if number else []
        flow.add(f"t{number}", _fail if fails and number == TASKS - 2 else _note, needs=needs)
    return flow


def _note() -> str:
    return "what a small task gives, in one short line of text"


def _fail() -> None:
    raise RuntimeError("it does not work")


def question() -> Workflow:
    """What waits for an answer, with some tasks behind it."""
    flow = chain()
    flow.add("ship", _note, needs=[f"t{TASKS - 1}"], approve="Ship it?")
    return flow


def build(folder: Path, *, url: str, runs: int, waiting: int, tell: Callable[[str], None] = print) -> Path:
    """The repository with the database in it; `url` where that is a server's."""
    root = git_repository(folder)
    if url:
        os.environ["AGENTOS_WORKFLOW_DB"] = url
    begun = time.perf_counter()
    run(chain(), workflow_id="template-done", repo=root)
    run(chain(fails=True), workflow_id="template-failed", repo=root, check=False)
    for number in range(waiting):
        run(question(), workflow_id=f"waiting-{number:03d}", repo=root, durability="process")
    tell(f"{waiting} runs that wait: {time.perf_counter() - begun:.1f} s")
    begun = time.perf_counter()
    words = {"runs": runs, "year": YEAR_US, "failed": FAILED_EACH, "rare": max(runs // RARE, 8), "columns": _COLUMNS}
    if url:
        _copy_postgres(url, words)
    else:
        _copy_sqlite(root / ".agentos/issue_workflow.db", words)
    tell(f"{runs} copies: {time.perf_counter() - begun:.1f} s")
    return root


def _copy_sqlite(database: Path, words: dict[str, object]) -> None:
    more = {"lease": "lease_boot, lease_expires, lease_until", "none": "'', 0, 0", "scope": "", "scope_to": ""}
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        # `INSERT` must stand first for SQLite, too: the numbers are a table for a moment.
        connection.execute("CREATE TEMP TABLE numbers (no INTEGER)")
        connection.execute(_SQLITE_NUMBERS.format(**words) + " INSERT INTO temp.numbers SELECT no FROM numbers")
        for text in (_COPY_RUNS, _SQLITE_EVENTS, _CUTS, *_later({"scope": "", "scope_to": ""}, _tables(connection))):
            connection.execute(text.format(**words, **more) if text is _COPY_RUNS else text)
        connection.execute("ANALYZE" if "sqlite_stat1" in _tables(connection) else "SELECT 1")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _copy_postgres(url: str, words: dict[str, object]) -> None:
    import psycopg

    from agentos.store.postgres.address import read_address

    address = read_address(url)
    more = {"lease": "lease_until", "none": "'epoch'", "scope": ", t.scope", "scope_to": ", scope"}
    numbers = "WITH numbers AS (SELECT generate_series(1, {runs}) AS no) ".format(**words)
    copy = (
        _COPY_RUNS.format(**words, **more)
        .replace("substr('0000000' || g.no, -7)", "lpad(g.no::text, 7, '0')")
        .replace("INSERT INTO run", numbers + "INSERT INTO run", 1)
    )
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", [address.search_path])
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
        ).fetchall()
        later = _later({"scope": "scope, ", "scope_to": "scope, "}, {str(name) for (name,) in found})
        for text in (copy, _POSTGRES_EVENTS, _CUTS, *later):
            connection.execute(text.encode())
        connection.execute("VACUUM ANALYZE")


def _later(scope: dict[str, str], tables: set[str]) -> list[str]:
    return [text.format(**scope) for name, text in _AFTERWARDS.items() if name in tables]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default="")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--waiting", type=int, default=182)
    given = parser.parse_args()
    print(build(given.folder, url=given.url, runs=given.runs, waiting=given.waiting))

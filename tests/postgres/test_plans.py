"""How the server finds things: what it has to read does not grow with the runs of a schema. Counted, never timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from agentos.store.journal_reader import stored_statuses
from agentos.store.port import UNDER_WAY
from agentos.store.postgres.address import read_address
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import statements_of
from tests.marks import quick_first
from tests.postgres.server import fresh_url

FEW, MANY = 2_000, 20_000
SCOPES = 20
EVENTS = 10
ALIVE = 4
"""Runs of each scope that are under way, however many have ended."""

FILL = f"""
INSERT INTO scope (repository, worktree) SELECT 'r' || g, '' FROM generate_series(1, {SCOPES}) AS g;
INSERT INTO run (scope, id, name, kind, status, layer, layers, epoch, sequence, digest, plan_revision, token, holder,
                 lease_until, created_at, updated_at, source, root, fingerprint, labels, host)
SELECT 1 + g % {SCOPES}, 'run-' || lpad(g::text, 7, '0'), 'n', 'workflow',
       CASE WHEN g <= {ALIVE * SCOPES} THEN (ARRAY['running', 'waiting', 'paused', 'pending'])[1 + g / {SCOPES} % 4]
            WHEN g % 3 = 0 THEN 'failed' WHEN g % 100 = 1 THEN 'aborted' ELSE 'complete' END,
       0, 1, 0, {EVENTS}, '', 1, 1, NULL, 'epoch', g, g, '', '', '', '[]', ''
FROM generate_series(1, %s) AS g;
INSERT INTO event (run, seq, at, type, version, body, digest)
SELECT r.no, s, s, CASE s WHEN 1 THEN 3 WHEN 2 THEN 25 ELSE 9 END, 1,
       '{{"to_seq":1,"task_id":"t' || s || '"}}', '' FROM run AS r, generate_series(1, {EVENTS}) AS s;
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot)
SELECT 'cut-' || r.no || '-' || s, r.no, s, 0, 0, '', '' FROM run AS r, generate_series(1, 5) AS s;
INSERT INTO inbox (id, run, posted_at, author, attempt_id, body, consumed_at)
SELECT 'c' || s, r.no, 0, '', '', '{{}}', 1 FROM run AS r, generate_series(1, 3) AS s;
INSERT INTO blob (run, digest, size, body) SELECT no, sha256(no::text::bytea), 0, '1' FROM run;
INSERT INTO plan (run, revision, body, digest) SELECT no, 1, '', '' FROM run;
"""
ONE, ALL = [18], list(range(1, SCOPES + 1))
ASKED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "show": ("find_runs", ("run-0000077", 4, ONE)),
    "show, by what many ids begin with": ("find_runs", ("run", 4, ONE)),
    "show, from elsewhere": ("find_runs", ("run-0000077", 4, ALL)),
    "list": ("list_runs", (50, None, ONE)),
    "list --everywhere": ("list_runs", (50, None, ALL)),
    "list --status failed": ("list_runs_in", (5, ["failed"], None, ONE)),
    "list --status complete --status failed": ("list_runs_in", (5, ["complete", "failed"], None, ONE)),
    "what a worker looks for": ("list_runs_in", (None, stored_statuses({"interrupted"}), None, ONE)),
    "inbox": ("list_runs_in", (None, stored_statuses(UNDER_WAY), None, ALL)),
    "events": ("read_events", (77, 3, 9)),
    "the newest checkpoint": ("list_checkpoints", ("run-0000077", ONE)),
    "a checkpoint by its id": ("find_checkpoints", ("cut-77-3", 4, ONE)),
    "the head of a journal": ("find_head", ("run-0000077", ONE)),
    "a lease": ("find_lease", ("run-0000077", ONE)),
    "every lease held": ("held_leases", (ONE,)),
    "a digest": ("read_digest", (77, 3)),
    "a plan": ("read_plan", (77, 1)),
    "commands": ("read_inbox", (77,)),
    "news": ("read_marks", ([77, 78],)),
    "a sign of life": ("renew_lease", ("run-0000077", 1, 15.0, ONE)),
    "pruning": ("prune_checkpoints", (77, 2)),
}
VIEWS = {
    "a run": "SELECT * FROM runs WHERE workflow_id = 'run-0000077'",
    "newest runs": "SELECT * FROM runs ORDER BY number DESC LIMIT 20",
    "events of a run": "SELECT * FROM events WHERE workflow_id = 'run-0000077' ORDER BY seq",
    "tasks of a run": "SELECT * FROM tasks WHERE workflow_id = 'run-0000077'",
    "checkpoints of a run": "SELECT * FROM workflow_checkpoint WHERE workflow_id = 'run-0000077'",
}
Connection = psycopg.Connection[tuple[Any, ...]]


def filled(runs: int) -> Iterator[Connection]:
    url = fresh_url()
    open_store(url).close()
    address = read_address(url)
    with psycopg.connect(address.conninfo, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute("SELECT set_config('search_path', $1, false)", [address.search_path])
        connection.execute(FILL.replace("%s", str(runs)))
        connection.execute("VACUUM ANALYZE")
        yield connection


@pytest.fixture(scope="module")
def few() -> Iterator[Connection]:
    yield from filled(FEW)


@pytest.fixture(scope="module")
def many() -> Iterator[Connection]:
    yield from filled(MANY)


def schema_of(connection: Connection) -> str:
    row = connection.execute("SELECT current_schema()").fetchone()
    assert row is not None
    return str(row[0])


def explained(connection: Connection, query: str, arguments: tuple[Any, ...] = ()) -> dict[str, Any]:
    with connection.transaction(force_rollback=True):
        row = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", arguments, prepare=True).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def pages(plan: dict[str, Any]) -> int:
    """Pages that were looked at, whether they were in memory or not."""
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


def check_flat(before: dict[str, Any], after: dict[str, Any]) -> None:
    # An index ten times as large may be one level higher, for each time that something is looked up in it.
    lookups = max((node["Actual Loops"] for node in nodes(after) if "Index Name" in node), default=0)
    assert pages(after) <= pages(before) + 10 + 2 * lookups, shown(after)
    # The few scopes may be read at once, and nothing else.
    whole = [node["Relation Name"] for node in nodes(after) if node["Node Type"] == "Seq Scan"]
    assert set(whole) <= {"scope", "event_type", "follower"}, shown(after)


@pytest.mark.parametrize("generic", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("what", quick_first(ASKED, quick=3))
def test_ten_times_as_many_runs_make_no_question_dearer(
    few: Connection, many: Connection, what: str, generic: str
) -> None:
    name, arguments = ASKED[what]
    queries = [statements_of(schema_of(connection), lazy_commits=False)[name] for connection in (few, many)]
    for connection in (few, many):
        connection.execute(f"SET plan_cache_mode = {generic}")
    check_flat(explained(few, queries[0], arguments), explained(many, queries[1], arguments))


@pytest.mark.parametrize("what", VIEWS)
def test_the_views_read_the_rows_of_the_run_that_is_asked_for_alone(
    few: Connection, many: Connection, what: str
) -> None:
    check_flat(explained(few, VIEWS[what]), explained(many, VIEWS[what]))


def shown(plan: dict[str, Any]) -> str:
    kept = ("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Actual Rows", "Actual Loops")
    return "\n".join(
        json.dumps({name: node[name] for name in kept if name in node} | {"pages": pages(node)}) for node in nodes(plan)
    )


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)

"""How the server finds things: what it has to read does not grow with the runs of a schema. Counted, never timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from agentos.store.journal_reader import stored_statuses
from agentos.store.port import RunStatus
from agentos.store.postgres.address import read_address
from agentos.store.postgres.database import open_store
from agentos.store.postgres.pool import statements_of
from agentos.store.run_queue import UNDRIVEN
from tests.marks import quick_first
from tests.postgres.server import fresh_url

BEGUN: set[RunStatus] = {"running", "waiting", "paused", "interrupted"}
"""Under way, but for what was submitted: of that there may be as many as there are runs."""
FEW, MANY = 2_000, 20_000
SCOPES = 20
EVENTS = 10
ALIVE = 4
"""Runs of each scope that are under way, however many have ended."""
RARE = 200
"""So many, the oldest, have a rare label; those of them that failed left tasks that seem to run."""

FILL = f"""
INSERT INTO scope (repository, worktree) SELECT 'r' || g, '' FROM generate_series(1, {SCOPES}) AS g;
INSERT INTO run (scope, id, name, kind, status, layer, layers, epoch, sequence, digest, plan_revision, token, holder,
                 lease_until, created_at, updated_at, source, root, fingerprint, labels, host, queue, priority,
                 ready_at)
SELECT 1 + g % {SCOPES}, 'run-' || lpad(g::text, 7, '0'), 'n', 'workflow',
       CASE WHEN g <= {ALIVE * SCOPES} THEN (ARRAY['running', 'waiting', 'paused', 'pending'])[1 + g / {SCOPES} % 4]
            WHEN g % 7 = 0 THEN 'queued'
            WHEN g % 3 = 0 THEN 'failed' WHEN g % 100 = 1 THEN 'aborted' ELSE 'complete' END,
       0, 1, 0, {EVENTS}, '', 1, 1, NULL, 'epoch', g, g, '', '', '', '[]', '',
       CASE g % 2 WHEN 1 THEN 'gpu' ELSE '' END, g % 10, 0
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
INSERT INTO label (scope, label, created_at, run) SELECT scope, 'common', created_at, no FROM run;
INSERT INTO label (scope, label, created_at, run)
SELECT scope, 'rare', created_at, no FROM run WHERE created_at <= {RARE};
INSERT INTO question (run, seq) SELECT no, 3 FROM run WHERE status = 'waiting';
INSERT INTO task_left (run, status) SELECT no, 'failed' FROM run WHERE status = 'failed';
INSERT INTO task_left (run, status) SELECT no, 'running' FROM run WHERE status = 'failed' AND created_at <= {RARE};
"""
ONE, ALL = [18], list(range(1, SCOPES + 1))
ANY = (None, None, None, 2**63 - 1, "", "", "")
"""Any label, name and text, from the newest on."""
LABELLED = (["rare", "none"], *ANY[1:])
BEHIND = (None, None, None, 1977, "run-0001977", "r18", "")
WANTED: tuple[Any, ...] = (4, ["", "gpu"], None, None, ["run-0000014"], [EVENTS], [], [])
"""Four runs of two queues, any workflow and label; one passed over, no limit reached, no holder known to be dead."""
ASKED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "show": ("find_runs", ("run-0000077", 4, ONE)),
    "show, by what many ids begin with": ("find_runs", ("run", 4, ONE)),
    "show, from elsewhere": ("find_runs", ("run-0000077", 4, ALL)),
    "list": ("list_runs", (50, *ANY, ONE)),
    "list --everywhere": ("list_runs", (50, *ANY, ALL)),
    "the next page of a list": ("list_runs", (50, *BEHIND, ONE)),
    "the next page of what failed": ("list_runs_in", (5, *BEHIND, ["failed"], ONE)),
    "list --status failed": ("list_runs_in", (5, *ANY, ["failed"], ONE)),
    "list --status complete --status failed": ("list_runs_in", (5, *ANY, ["complete", "failed"], ONE)),
    "what resume --all looks for": ("list_runs_in", (None, *ANY, stored_statuses({"interrupted"}), ONE)),
    "what a worker takes that was submitted": ("next_queued", (*WANTED, ONE)),
    "what a worker takes that was interrupted": ("next_undriven", (*WANTED, list(UNDRIVEN), ONE)),
    "who counts towards limits": ("held_slots", (None,)),
    "a rare label": ("list_labelled", (50, *LABELLED, None, ONE)),
    "a rare label, everywhere": ("list_labelled", (50, *LABELLED, None, ALL)),
    "a rare label among those that failed": ("list_labelled", (5, *LABELLED, ["failed"], ONE)),
    "inbox": ("open_questions", (ONE,)),
    "inbox, everywhere": ("open_questions", (ALL,)),
    "what is under way": ("list_runs_in", (None, *ANY, stored_statuses(BEGUN), ALL)),
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
    "tasks that run": "SELECT workflow_id, task_id FROM tasks WHERE status = 'running'",
    "tasks that wait": "SELECT workflow_id, task_id FROM tasks WHERE status = 'waiting'",
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
    lookups = sum(node["Actual Loops"] for node in nodes(after) if "Index Name" in node)
    assert pages(after) <= pages(before) + 10 + lookups, shown(after)
    # The few scopes, and the few questions, may be read at once, and nothing else.
    whole = [node["Relation Name"] for node in nodes(after) if node["Node Type"] == "Seq Scan"]
    assert set(whole) <= {"scope", "event_type", "follower", "question"}, shown(after)


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

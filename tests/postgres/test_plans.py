"""How the server finds things, in a schema with many runs: through an index, never by reading all of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from agentos.store.postgres.address import read_address
from agentos.store.postgres.opening import open_store
from agentos.store.postgres.session import _Q
from tests.postgres.server import fresh_url

RUNS = 3000
EVENTS = 20

FILL = f"""
INSERT INTO scope (repository, worktree) SELECT 'r' || g, '' FROM generate_series(1, 20) AS g;
INSERT INTO run (scope, id, name, kind, status, layer, layers, epoch, sequence, digest, plan_revision, token,
                 lease_until, created_at, updated_at, source, root, fingerprint, labels, host)
SELECT 1 + g % 20, 'run-' || g, 'n', 'workflow', 'complete', 0, 1, 0, {EVENTS}, '', 1, 1, 'epoch', g, g, '', '', '',
       '[]', ''
FROM generate_series(1, {RUNS}) AS g;
INSERT INTO event (run, seq, at, type, version, body, digest)
SELECT r.no, s, s, 9, 1, '{{}}', '' FROM run AS r, generate_series(1, {EVENTS}) AS s;
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot)
SELECT 'cut-' || r.no || '-' || s, r.no, s, 0, 0, '', '' FROM run AS r, generate_series(1, 5) AS s;
INSERT INTO inbox (id, run, posted_at, author, attempt_id, body, consumed_at)
SELECT 'c' || s, r.no, 0, '', '', '{{}}', 1 FROM run AS r, generate_series(1, 3) AS s;
INSERT INTO plan (run, revision, body, digest) SELECT no, 1, '', '' FROM run;
ANALYZE;
"""
ASKED: dict[str, tuple[Any, ...]] = {
    "find_head": ("run-77", [18]),
    "find_lease": ("run-77", [18]),
    "find_runs": ("run-77", 4, [18]),
    "list_runs": (20, [18]),
    "list_unfinished_runs": (None, [18]),
    "read_events": (77, 3, 9),
    "read_digest": (77, 3),
    "read_plan": (77, 1),
    "list_checkpoints": ("run-77", [18]),
    "find_checkpoints": ("cut-77-3", 4, [18]),
    "prune_checkpoints": (77, 2),
    "read_inbox": (77,),
    "read_marks": ([77, 78],),
    "renew_lease": ("run-77", 1, 15.0, [18]),
}


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    url = fresh_url()
    open_store(url).close()
    address = read_address(url)
    with psycopg.connect(address.conninfo, autocommit=True, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute("SELECT set_config('search_path', $1, false)", [address.search_path])
        connection.execute(FILL)
        yield connection


@pytest.mark.parametrize("generic", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ASKED)
def test_nothing_is_found_by_reading_a_whole_table(
    connection: psycopg.Connection[tuple[Any, ...]], name: str, generic: str
) -> None:
    connection.execute(f"SET plan_cache_mode = {generic}")
    row = connection.execute(f"EXPLAIN (FORMAT JSON) {_Q[name]}", ASKED[name], prepare=True).fetchone()
    assert row is not None
    scans = [node for node in nodes(row[0][0]["Plan"]) if "Relation Name" in node]
    whole = [node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"]
    # The few scopes may be read at once.
    assert [table for table in whole if table != "scope"] == [], json.dumps(row[0], indent=1)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)

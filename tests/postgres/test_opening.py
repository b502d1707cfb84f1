"""Opening: what is made, what is migrated, and what is refused and left as it was."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import psycopg
import pytest

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    ForeignDatabaseError,
    NewerSchemaError,
    NotFoundError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store.holder import current_holder
from agentos.store.postgres import migrations
from agentos.store.postgres.address import read_address
from agentos.store.postgres.database import open_store
from agentos.store.sqlfiles import Migration
from tests.contract.backends import Backend
from tests.contract.journals import RUN, RUNNING, Journal, create
from tests.postgres.server import fresh_url, shared_url

KNOWN = len(migrations.known_migrations())
NEXT = Migration(KNOWN + 1, "add_a_word", "ALTER TABLE run ADD COLUMN word text;")
STEPS = (*migrations.known_migrations(), NEXT)


def tables(url: str) -> list[str]:
    schema = read_address(url).schema
    rows = Backend("postgres", url).query(
        "SELECT relname FROM pg_class WHERE relnamespace::regnamespace::text = ?", schema
    )
    return sorted(name for (name,) in rows)


def version(url: str) -> str:
    [(value,)] = Backend("postgres", url).query("SELECT value FROM meta WHERE key = 'schema'")
    return str(value)


def test_looking_makes_nothing(url: str) -> None:
    for options in ({"readonly": True}, {"create": False}):
        with pytest.raises(NotFoundError, match="nothing of ours"):
            open_store(url, **options)  # type: ignore[arg-type]
    assert tables(url) == []


def test_a_schema_that_somebody_made_for_us_is_used(url: str) -> None:
    Backend("postgres", url).query(f'CREATE SCHEMA "{read_address(url).schema}"')
    open_store(url).close()
    assert "event" in tables(url)


def test_a_schema_of_another_program_is_refused_and_left_as_it_is(url: str) -> None:
    backend = Backend("postgres", url)
    backend.query(f'CREATE SCHEMA "{read_address(url).schema}"')
    backend.query("CREATE TABLE meta (what integer)")
    for options in ({}, {"readonly": True}):
        with pytest.raises(ForeignDatabaseError, match="another program's, with the tables meta"):
            open_store(url, **options)  # type: ignore[arg-type]
    assert tables(url) == ["meta"]


def test_a_newer_schema_is_refused_and_left_as_it_is(url: str) -> None:
    open_store(url, steps=STEPS).close()
    before = tables(url)
    for options in ({}, {"readonly": True}):
        with pytest.raises(NewerSchemaError, match=f"has schema {KNOWN + 1}; this version of AgentOS knows {KNOWN}"):
            open_store(url, **options)  # type: ignore[arg-type]
    assert (tables(url), version(url)) == (before, str(KNOWN + 1))


def test_an_older_schema_is_migrated_by_who_writes_and_shown_by_who_looks(url: str) -> None:
    old = open_store(url)
    lease, journal = create(old), Journal()
    journal.complete("a", b'"kept"', place="000001")
    journal.cut()
    old.append(lease, journal.take(), RUNNING)
    with pytest.raises(StoreUnavailableError, match=f"drives run {RUN} on it"):
        open_store(url, steps=STEPS)
    old.release_lease(lease)
    looking = open_store(url, readonly=True, steps=STEPS)
    assert looking.find_run(RUN).sequence == 2
    assert version(url) == str(KNOWN)
    open_store(url, steps=STEPS).close()
    assert version(url) == str(KNOWN + 1)
    assert len(Backend("postgres", url).query("SELECT state FROM workflow_checkpoint")) == 1
    with pytest.raises(NewerSchemaError, match=f"migrated to schema {KNOWN + 1}"):
        old.take_lease(RUN, current_holder(), 15.0)
    with pytest.raises(NewerSchemaError, match=f"migrated to schema {KNOWN + 1}"):
        create(old, "another")
    old.close()
    looking.close()


def test_a_migration_that_fails_leaves_no_trace(url: str) -> None:
    open_store(url).close()
    before = tables(url)
    broken = Migration(KNOWN + 1, "broken", "ALTER TABLE run ADD COLUMN word text; SELECT nonsense;")
    with pytest.raises(CheckpointCorruptedError, match="nonsense"):
        open_store(url, steps=(*migrations.known_migrations(), broken))
    assert (tables(url), version(url)) == (before, str(KNOWN))
    open_store(url, steps=STEPS).close()


@pytest.mark.parametrize("first", ["nothing", "an older schema"])
def test_many_that_open_at_once_make_or_migrate_it_once(url: str, first: str) -> None:
    if first == "an older schema":
        open_store(url).close()
    with ThreadPoolExecutor(12) as threads:
        for store in threads.map(lambda _: open_store(url, steps=STEPS), range(12)):
            store.close()
    assert version(url) == str(KNOWN + 1)


@pytest.mark.parametrize(
    "schema",
    ['a"b', "a; DROP SCHEMA public CASCADE; --", "é ü", "A", "a,b", "%s", "x" * 63, "a\\b", "public.x"],
)
def test_any_name_can_be_a_schema_and_nothing_but_a_name(schema: str) -> None:
    url = f"{shared_url()}{'&' if '?' in shared_url() else '?'}schema={quote(schema)}"
    store = open_store(url)
    lease, journal = create(store), Journal()
    journal.start("a")
    store.append(lease, journal.take(), RUNNING)
    assert len(store.read_events(RUN)) == 1
    store.has_changed()
    assert store.size() > 0
    store.close()
    with psycopg.connect(shared_url()) as connection:
        found = connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = %s", [schema]).fetchone()
        assert found == (1,)
        assert connection.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'public'").fetchone() == (1,)
        connection.execute(psycopg.sql.SQL("DROP SCHEMA {} CASCADE").format(psycopg.sql.Identifier(schema)))


@pytest.mark.parametrize("schema", ["", "x" * 64, "é" * 32, "pg_mine", "information_schema", "$user", "a%00b"])
def test_impossible_names_are_refused(schema: str) -> None:
    with pytest.raises(WorkflowConfigurationError, match="no schema can be called"):
        open_store(fresh_url(schema or " ").replace("schema= ", "schema="))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://a:geheim@h/d?nonsense=1",
        "postgresql://a:geheim@[h/d",
        "postgresql://a:geheim@h:x/d",
        "postgresql://a:p@geheim@h/d",
        "postgresql://a@h:x/d?sslpassword=geheim&password=geheim",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(WorkflowConfigurationError) as told:
        open_store(url)
    assert "geheim" not in str(told.value)


def test_a_database_that_is_not_utf8_is_refused(url: str) -> None:
    with psycopg.connect(shared_url(), autocommit=True) as connection:
        name = f"ascii_{read_address(url).schema}"
        connection.execute(
            f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    with pytest.raises(AgentosError, match="not encoded in UTF8"):
        open_store(url.replace("/postgres?", f"/{name}?"))

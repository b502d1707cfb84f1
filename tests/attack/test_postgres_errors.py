"""Every way a PostgreSQL server will not have us has a text of its own, at once where trying again cannot help.

No error of a connection, and none that we do not know, is told as damage; no part of a password is printed.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.store.postgres import driver
from agentos.store.postgres.database import open_store
from tests.cli.conftest import Agentos, agentos
from tests.contract.journals import RUNNING, Journal, create
from tests.postgres.server import PASSWORD, Server, free_port, own_server

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

HIDDEN = PASSWORD.replace(" ", "%20")
ROLES = """
CREATE ROLE barred LOGIN PASSWORD 'correct horse';
CREATE ROLE nologin NOLOGIN PASSWORD 'correct horse';
CREATE ROLE crowded LOGIN PASSWORD 'correct horse' CONNECTION LIMIT 0;
CREATE ROLE reader LOGIN PASSWORD 'correct horse';
ALTER ROLE reader SET default_transaction_read_only = on;
CREATE DATABASE closed ALLOW_CONNECTIONS false;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with own_server() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            for statement in ROLES.strip().split(";\n"):
                connection.execute(statement.encode())
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all barred 127.0.0.1/32 reject\n{rules.read_text()}")
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often it was tried again."""
    counted: list[float] = []
    monkeypatch.setattr("agentos.store.postgres.driver.time.sleep", counted.append)
    return counted


def refused(url: str, **options: Any) -> AgentosError:
    with pytest.raises(AgentosError) as told:
        open_store(url, **options)
    for part in (PASSWORD, HIDDEN, "correct", "horse"):
        assert part not in str(told.value)
    assert not isinstance(told.value, CheckpointCorruptedError)
    return told.value


# --- a real server ------------------------------------------------------------------------------------------------

Change = Callable[[str], str]


def of_user(name: str) -> Change:
    return lambda url: url.replace("//postgres:", f"//{name}:")


FINAL: dict[str, tuple[Change, str]] = {
    "wrong password": (lambda url: url.replace(HIDDEN, "nope"), "password is wrong, or there is none.*authentication"),
    "no password": (lambda url: url.replace(f":{HIDDEN}", ""), "password is wrong, or there is none.*no password"),
    "no such user": (of_user("nobody_here"), "password is wrong|no user of this name"),
    "a user that may not log in": (of_user("nologin"), "no user of this name that may log in.*not permitted"),
    "no such database": (lambda url: f"{url}x", r"does not exist on that server.*\n.*createdb"),
    "pg_hba.conf": (of_user("barred"), r"from here \(pg_hba.conf\).*\n.*sslmode=require"),
    "TLS demanded": (lambda url: f"{url}?sslmode=require", r"does not offer TLS.*\n.*ssl = on"),
    "a certificate that is not there": (
        lambda url: f"{url}?sslmode=verify-full&sslrootcert=/nowhere/root.crt",
        "TLS",
    ),
    "TLS that is misspelt": (lambda url: f"{url}?sslmode=sometimes", "TLS"),
    "no such host": (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), "host whose name is not known"),
    "no such service": (lambda url: f"{url}?service=nowhere", "is not a PostgreSQL URL|cannot be used.*definition"),
}
PASSING: dict[str, tuple[Change, str]] = {
    "too many connections": (of_user("crowded"), r"no connection free: .*too many connections for role.*\n.*Raise"),
    "a closed database": (
        lambda url: url.replace("/postgres", "/closed").replace("//closed", "//postgres"),
        "starting, shutting down or recovering: .*not currently accepting",
    ),
    "nothing there": (lambda url: url.replace(url.split(":")[-1].split("/")[0], "1"), "nothing listens there"),
    "no socket there": (lambda url: "postgresql://postgres@/postgres?host=/nowhere", "nothing listens there"),
    "no standby": (lambda url: f"{url}?target_session_attrs=standby", "wants another kind"),
    "read-only": (lambda url: f"{of_user('reader')(url)}?target_session_attrs=read-write", "wants another kind"),
}


@pytest.mark.parametrize("what", FINAL)
def test_what_cannot_get_better_is_told_at_once(server: Server, what: str, pauses: list[float]) -> None:
    change, pattern = FINAL[what]
    error = refused(change(server.tcp_url))
    assert isinstance(error, WorkflowConfigurationError), str(error)
    assert re.search(pattern, str(error)), str(error)
    assert pauses == []


@pytest.mark.parametrize("what", PASSING)
def test_what_may_get_better_is_tried_again_and_told_as_what_it_is(
    server: Server, what: str, pauses: list[float]
) -> None:
    change, pattern = PASSING[what]
    error = refused(change(server.tcp_url), busy_s=0.3)
    assert isinstance(error, StoreUnavailableError), str(error)
    assert re.search(pattern, str(error)), str(error)
    assert pauses


def test_the_program_ends_with_the_documented_codes(
    server: Server, tmp_git_repo: Path, agentos: Agentos, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, code in (("wrong password", 1), ("pg_hba.conf", 1), ("TLS demanded", 1), ("too many connections", 75)):
        change, _ = (FINAL | PASSING)[what]
        monkeypatch.setenv("AGENTOS_WORKFLOW_DB", change(server.tcp_url))
        done = agentos("list", cwd=tmp_git_repo)
        assert done.code == code, f"{what}: {done.err}"
        assert "see whether the server runs" not in done.err.lower()


def test_of_two_hosts_the_one_that_may_come_back_counts(server: Server, pauses: list[float]) -> None:
    """And of two addresses of one host the one that answered: nothing may listen on the other."""
    hosts = server.tcp_url.replace(HIDDEN, "nope").replace("@", f"@localhost:{free_port()},")
    assert isinstance(refused(hosts, busy_s=0.2), StoreUnavailableError)
    assert pauses
    pauses.clear()
    text = (
        "connection failed: x\nMultiple connection attempts failed. All failures were:\n"
        "- host: 'localhost', port: '1', hostaddr: '::1': connection failed: Connection refused\n"
        "\tIs the server running?\n"
        "- host: 'localhost', port: '1', hostaddr: '127.0.0.1': connection failed: password authentication failed"
    )
    assert not driver.is_passing(psycopg.OperationalError(text))
    assert driver.is_passing(psycopg.OperationalError(text.replace("'localhost'", "'standby'", 1)))


WRITTEN = ("cor@rect", "cor/rect", "12/rect", "cor?rect", "1?rect", "cor#rect", "1:rect", "cor%rect", "12/34@rect")


@pytest.mark.parametrize("word", [*WRITTEN, "cor?password=rect", "cor@12:rect"])
def test_no_part_of_a_password_is_printed_however_it_is_written(word: str) -> None:
    port = free_port()
    for url in (
        f"postgresql://ada:{word}@127.0.0.1:{port}/db",
        f"postgresql://ada:{word}@nowhere.invalid/db",
        f"postgresql://ada@127.0.0.1:{port}/db?password={word}",
        f"postgresql://127.0.0.1:{port}/db?user=ada&password={word}&application_name=a",
        f"postgresql://ada:x@127.0.0.1:{port}/db?sslpassword={word}",
    ):
        with pytest.raises(AgentosError) as told:
            open_store(url, busy_s=0.0)
        said = str(told.value)
        assert "rect" not in said
        assert "cor" not in said


# --- what else answers --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[int]]]:
    """Something that is no server of ours, on a port; its URL, and a note for each who came."""
    came: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                came.append(1)
                with client, contextlib.suppress(OSError):
                    answer(client)

        threading.Thread(target=serve, daemon=True).start()
        yield f"postgresql://ada:{HIDDEN}@127.0.0.1:{listening.getsockname()[1]}/db", came
        listening.shutdown(socket.SHUT_RDWR)


def saying(code: str, text: str) -> Callable[[socket.socket], None]:
    """Lets nobody in, with these words: as a server does that starts, or a pooler."""

    def answer(client: socket.socket) -> None:
        while True:
            length, number = struct.unpack("!ii", client.recv(8, socket.MSG_WAITALL))
            client.recv(length - 8, socket.MSG_WAITALL)
            if number == 196608:
                break
            client.sendall(b"N")
        body = b"\0".join((b"SFATAL", b"VFATAL", b"C" + code.encode(), b"M" + text.encode())) + b"\0\0"
        client.sendall(b"E" + struct.pack("!i", len(body) + 4) + body)

    return answer


SAID = {
    "starting": ("57P03", "the database system is starting up", StoreUnavailableError, "starting, shutting down"),
    "stopping": ("57P03", "the database system is shutting down", StoreUnavailableError, "starting, shutting down"),
    "all taken": ("53300", "sorry, too many clients already", StoreUnavailableError, "no connection free"),
    "the last ones": (
        "53300",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        StoreUnavailableError,
        "no connection free",
    ),
    "a full pooler": ("53300", "no more connections allowed (max_client_conn)", StoreUnavailableError, "no connection"),
    "a pooler alone": (
        "08P01",
        "pgbouncer cannot connect to server",
        StoreUnavailableError,
        "pooler that cannot reach",
    ),
    "TLS wanted by a pooler": ("08P01", "SSL required", WorkflowConfigurationError, "demands TLS"),
    "unknown to a pooler": ("08P01", "no such user", WorkflowConfigurationError, "no user of this name"),
    "a client certificate": (
        "28000",
        "connection requires a valid client certificate",
        WorkflowConfigurationError,
        "certificate of their own",
    ),
    "another language": ("57P03", "das Datenbanksystem startet", StoreUnavailableError, "cannot be reached"),
}


@pytest.mark.parametrize("what", SAID)
def test_what_a_server_or_pooler_says_is_told_apart(what: str, pauses: list[float]) -> None:
    code, text, kind, told = SAID[what]
    with answering(saying(code, text)) as (url, came):
        error = refused(url, busy_s=0.2)
        assert type(error) is kind, str(error)
        assert told in str(error)
        assert text in str(error)
        assert (len(came) == 1) == (kind is WorkflowConfigurationError)


def test_a_server_of_another_kind_is_told_as_that(pauses: list[float]) -> None:
    with answering(lambda client: client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as (url, _):
        assert "is no PostgreSQL server" in str(refused(url))
    assert pauses == []


def test_one_that_says_nothing_is_told_as_that() -> None:
    ended = threading.Event()

    def wait(_: socket.socket) -> None:
        ended.wait(20)

    with answering(wait) as (url, _):
        assert "does not answer" in str(refused(f"{url}?connect_timeout=2", busy_s=0.0))
        ended.set()


def test_a_certificate_that_proves_nothing_is_told_as_that(tmp_path: Path, pauses: list[float]) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")
    for name in ("theirs", "other"):
        argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=db.example.org"]
        files = ["-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.crt"]
        subprocess.run([*argv, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "theirs.crt", tmp_path / "theirs.key")

    def answer(client: socket.socket) -> None:
        client.recv(8, socket.MSG_WAITALL)
        client.sendall(b"S")
        with contextlib.suppress(ssl.SSLError), context.wrap_socket(client, server_side=True) as safe:
            safe.recv(1)

    with answering(answer) as (url, _):
        for root, why in (("other", "certificate verify failed"), ("theirs", "does not match host name")):
            error = refused(f"{url}?sslmode=verify-full&sslrootcert={tmp_path}/{root}.crt")
            assert isinstance(error, WorkflowConfigurationError)
            assert "prove that it is the right server" in str(error)
            assert why in str(error)
    assert pauses == []


# --- what is damage, and what is not --------------------------------------------------------------------------------

MEANT = {
    "XX001": CheckpointCorruptedError,
    "XX002": CheckpointCorruptedError,
    "XX000": StoreUnavailableError,
    "58030": StoreUnavailableError,
    "53200": StoreUnavailableError,
    "57014": StoreUnavailableError,
    "08006": StoreUnavailableError,
    "42P05": StoreUnavailableError,
    "26000": StoreUnavailableError,
    "40001": StoreUnavailableError,
    "42601": AgentosError,
    "22023": AgentosError,
    "P0001": AgentosError,
}


@pytest.mark.parametrize("code", MEANT)
def test_damage_is_what_postgresql_calls_damaged_and_nothing_else(server: Server, code: str) -> None:
    schema = f"codes_{code.lower()}"
    store = open_store(f"{server.tcp_url}?schema={schema}", busy_s=0.1)
    lease, journal = create(store), Journal()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'it went wrong' USING ERRCODE = '{code}'; END $$;"
            f"CREATE TRIGGER fail BEFORE INSERT ON {schema}.event "
            f"FOR EACH ROW EXECUTE FUNCTION {schema}.fail()".encode()
        )
    journal.start("a")
    events = journal.take()
    with pytest.raises(AgentosError) as told:
        store.append(lease, events, RUNNING)
    assert type(told.value) is MEANT[code], str(told.value)
    assert ("damaged" in str(told.value)) == (MEANT[code] is CheckpointCorruptedError)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP TRIGGER fail ON {schema}.event".encode())
    store.append(lease, events, RUNNING)
    assert len(store.read_events(lease.workflow_id)) == 1
    store.close()

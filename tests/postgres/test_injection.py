"""SQL in every text that reaches a query: it stays text, and comes back as it was."""

from __future__ import annotations

import msgspec
import pytest

from agentos.exceptions import AgentosError, RunNotFoundError, ValueEncodingError
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.store.holder import current_holder
from agentos.store.port import PostedCommand, Scope
from agentos.store.postgres.database import open_store
from agentos.values import encode_value
from tests.contract.backends import Backend
from tests.contract.journals import NOON, RUNNING, Journal, bodies, create, new_run

HOSTILE = [
    "'; DROP TABLE run; --",
    '"; DROP TABLE run; --',
    "$1",
    "$scope",
    "%s %(x)s %",
    "' || pg_sleep(9) || '",
    "\\'; SELECT 1; --",
    "$$; DELETE FROM event; $$",
    "E'\\x00'",
    "{a,b}",
    "NULL",
    "𝄞 é \u2028 \x7f \t\n",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text_wherever_it_is_put(url: str, text: str) -> None:
    store = open_store(url, scope=Scope(repository=text, worktree=text), blob_limit=40)
    holder = msgspec.structs.replace(current_holder(), host=text)
    run = new_run(text, name=text, source=text, root=text, host=text, fingerprint=text, parent_id=WorkflowId(text))
    lease = store.create_run(run, holder, 15.0)
    journal = Journal(text)
    journal.start(text)
    journal.complete(
        text, encode_value({text: [text * 20]}), place=text, context=msgspec.Raw(encode_value({text: text}))
    )
    journal.add(ev.TaskError, task_id=f"{text}!", layer=0, place=text, error=ev.TaskFailure(type=text, text=text))
    gate = {"gate_id": text, "kind": "approve", "task_id": text, "layer": 0, "place": text}
    journal.add(ev.DecisionRequired, question=text, **gate)
    journal.add(ev.DecisionMade, answer="approved", author=text, reason=text, **gate)
    cut = journal.cut(snapshot=text)
    journal.add(ev.Checkpointed, layer=1, checkpoint_id=text)
    events = journal.take()
    store.append(lease, events, RUNNING, plan=text.encode())
    command = PostedCommand(id=text, author=text, attempt_id=text, posted_at=NOON, command={text: text})
    store.post_command(lease.workflow_id, command)

    record = store.find_run(text)
    assert (record.workflow_id, record.name, record.source, record.root) == (text, text, text, text)
    assert record.scope == Scope(repository=text, worktree=text)
    assert bodies(store.read_events(lease.workflow_id)) == bodies(events)
    assert store.read_plan(lease.workflow_id) == text.encode()
    assert store.read_inbox(lease.workflow_id) == [command]
    assert [found.id for found in store.list_checkpoints(lease.workflow_id)] == [cut.checkpoint_id, text]
    found = store.find_checkpoint(text)
    assert found is not None
    assert found.id == text
    store.append(lease, [], RUNNING, consumed=[text])
    assert store.read_inbox(lease.workflow_id) == []
    backend = Backend("postgres", url)
    assert backend.query("SELECT workflow_id, repository, name FROM runs") == [(text, text, text)]
    assert len(backend.query("SELECT task_id FROM tasks WHERE task_id = ?", text)) == 1
    [(state,)] = backend.query("SELECT state ->> 'workflow_id' FROM workflow_checkpoint WHERE id = ?", text)
    assert state == text
    store.verify(lease.workflow_id)
    store.has_changed()
    elsewhere = open_store(url, scope=Scope(repository="elsewhere"))
    elsewhere.insert_copy(store.read_copy(lease.workflow_id))
    assert bodies(elsewhere.read_events(lease.workflow_id)) == bodies(events)
    elsewhere.close()
    store.move_run(lease, f"{text}/root", f"{text}.host", Scope(repository=f"{text}.git", worktree=text))
    moved = store.find_run(text)
    assert (moved.root, moved.host, moved.scope.repository) == (f"{text}/root", f"{text}.host", f"{text}.git")
    store.release_lease(lease)
    store.delete_runs([store.find_run(text)])
    with pytest.raises(RunNotFoundError):
        store.find_run(text)
    store.close()


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
def test_what_is_no_text_is_told_and_names_nothing(url: str, text: str) -> None:
    store = open_store(url)
    with pytest.raises(ValueEncodingError):
        create(store, text)
    with pytest.raises(RunNotFoundError):
        store.find_run(text)
    assert store.find_checkpoint(text) is None
    create(store, "sound")
    with pytest.raises(ValueEncodingError):
        store.post_command(WorkflowId("sound"), PostedCommand(id=text, author="me", posted_at=NOON, command={}))
    with pytest.raises(AgentosError):
        store.read_events(WorkflowId(text))
    assert [run.workflow_id for run in store.list_runs()] == ["sound"]
    store.close()


def test_a_wildcard_is_a_letter_like_any_other(url: str) -> None:
    store = open_store(url)
    for name in ("abc", "a%", "a_c"):
        create(store, name)
    assert store.find_run("a%").workflow_id == "a%"
    assert store.find_run("a_").workflow_id == "a_c"
    with pytest.raises(RunNotFoundError):
        store.find_run("%")
    store.close()

"""The seeds' own cases, under their numbers and names: where the checkpoint database lives, saving, resuming."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import stat
import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentos import Context, Workflow, WorkflowState
from agentos.exceptions import (
    AgentosError,
    CheckpointCorruptedError,
    CheckpointCutError,
    CheckpointNotFoundError,
    StateInvariantError,
    StoreUnavailableError,
    WorkflowConfigurationError,
)
from agentos.ids import WorkflowId
from agentos.machine import events as ev
from agentos.machine.facts.fold import fold
from agentos.machine.state import TaskEntry, update_state
from agentos.values import canonical_json
from agentos.workflow import ControlledExecutor
from agentos.workflow.checkpoint import (
    Checkpoint,
    CheckpointManager,
    ensure_agentos_dir,
    get_checkpoint_db_path,
    get_repo_root,
)
from agentos.workflow.place.place import Place
from agentos.workflow.start.ready_run import DriveOptions
from tests.workflow.support import (
    Killer,
    adrive,
    assert_well_formed,
    checkpoints,
    collected,
    comparable,
    drive,
    go_on,
    journal,
    kill,
    of_type,
    python,
    soon,
    sql,
    tampered,
    types,
    wrapped,
)

LAUNCHER = Path(__file__).parents[2] / "tools" / "run_issue_workflow.py"
SETTLED = 2  # what the launcher ends with where it knows the place, and not what to do there

pytestmark = pytest.mark.usefixtures("clean_env")


def launch(cwd: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, LAUNCHER, *argv], cwd=cwd, capture_output=True, text=True, timeout=60)


def new_repo(path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    return path


def test_per_repo_database_creation(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """010: the database of a repository is .agentos/issue_workflow.db at its root, and can be made there."""
    monkeypatch.chdir(tmp_git_repo)
    path = get_checkpoint_db_path()
    assert path == str(tmp_git_repo / ".agentos" / "issue_workflow.db")
    assert not os.path.exists(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table t (x)")
    database.close()
    assert os.path.isfile(path)


def test_different_repos_get_different_databases(tmp_path: Path) -> None:
    """020"""
    one, two = new_repo(tmp_path / "repo1"), new_repo(tmp_path / "repo2")
    assert launch(one).returncode == launch(two).returncode == SETTLED
    assert get_checkpoint_db_path(one) == str(one / ".agentos" / "issue_workflow.db")
    assert get_checkpoint_db_path(two) == str(two / ".agentos" / "issue_workflow.db")


def test_environment_variable_override(tmp_git_repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """030: the variable wins, and nothing appears in the repository."""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "new" / "custom.db"))
    monkeypatch.chdir(tmp_git_repo)
    assert get_checkpoint_db_path() == str(tmp_path / "new" / "custom.db")
    assert (tmp_path / "new").is_dir()
    assert not (tmp_git_repo / ".agentos").exists()


def test_fail_closed_outside_repo(tmp_path: Path) -> None:
    """040: the launcher prints the library's error on stderr and exits 1; nothing is made."""
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()
    for argv in ([], ["--brief"], ["--brief", "missing.md"]):
        done = launch(nowhere, *argv)
        assert done.returncode == 1
        assert done.stderr.startswith("Cannot determine checkpoint database location")
        assert "AGENTOS_WORKFLOW_DB" in done.stderr
        assert done.stdout == ""
    assert list(nowhere.iterdir()) == []


def test_worktree_isolation(tmp_worktree: tuple[Path, Path]) -> None:
    """050: a linked worktree has a folder of its own, and the main one is not touched."""
    main, worktree = tmp_worktree
    assert launch(worktree).returncode == SETTLED
    assert (worktree / ".agentos" / ".gitignore").is_file()
    assert not (main / ".agentos").exists()


def test_global_database_untouched(tmp_git_repo: Path) -> None:
    """060: neither content nor times of ~/.agentos/issue_workflow.db change, nor anything beside it."""
    old = Path.home() / ".agentos" / "issue_workflow.db"
    old.parent.mkdir()
    old.write_bytes(b"the old one")
    os.utime(old, (1, 1))
    before = old.stat()
    assert launch(tmp_git_repo, "--brief").returncode == SETTLED
    after = old.stat()
    assert (after.st_mtime_ns, after.st_atime_ns, after.st_ctime_ns) == (
        before.st_mtime_ns,
        before.st_atime_ns,
        before.st_ctime_ns,
    )
    assert [path.name for path in old.parent.iterdir()] == [old.name]


def test_nested_repo_detection(tmp_git_repo: Path) -> None:
    """070: from a subdirectory the database is still at the root."""
    below = tmp_git_repo / "subdir"
    below.mkdir()
    assert launch(below).returncode == SETTLED
    assert (tmp_git_repo / ".agentos").is_dir()
    assert not (below / ".agentos").exists()


def test_agentos_directory_creation(tmp_git_repo: Path) -> None:
    """080: the folder is made for this user alone, whatever the umask."""
    before = os.umask(0)
    try:
        folder = ensure_agentos_dir(tmp_git_repo)
    finally:
        os.umask(before)
    assert folder == tmp_git_repo / ".agentos"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert ensure_agentos_dir(tmp_git_repo) == folder


def test_env_var_with_tilde_expansion(monkeypatch: pytest.MonkeyPatch) -> None:
    """090"""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", "~/custom.db")
    assert get_checkpoint_db_path() == str(Path.home() / "custom.db")


@pytest.mark.parametrize("blank", ["", " ", "\t\n "])
def test_empty_env_var_treated_as_unset(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    """100"""
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", blank)
    assert get_checkpoint_db_path(tmp_git_repo) == str(tmp_git_repo / ".agentos" / "issue_workflow.db")


def test_t1_happy_path_repo(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_git_repo)
    assert get_repo_root() == tmp_git_repo
    assert get_checkpoint_db_path() == str(tmp_git_repo / ".agentos" / "issue_workflow.db")
    assert (tmp_git_repo / ".agentos" / ".gitignore").read_text() == "*\n"


def test_t2_env_var_override_skips_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no git to be found
    monkeypatch.setenv("AGENTOS_WORKFLOW_DB", str(tmp_path / "x.db"))
    assert get_checkpoint_db_path() == str(tmp_path / "x.db")


def test_t3_fail_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="AGENTOS_WORKFLOW_DB") as caught:
        get_checkpoint_db_path()
    assert isinstance(caught.value, WorkflowConfigurationError)
    assert str(caught.value).startswith("Cannot determine checkpoint database location")
    with pytest.raises(RuntimeError, match="not in a git repository"):
        get_repo_root()


def test_t4_worktree_isolation(tmp_worktree: tuple[Path, Path]) -> None:
    main, worktree = tmp_worktree
    assert get_repo_root(worktree) == worktree
    assert get_checkpoint_db_path(worktree) == str(worktree / ".agentos" / "issue_workflow.db")
    assert get_checkpoint_db_path(main) != get_checkpoint_db_path(worktree)


def test_t5_subdir_resolution(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = tmp_git_repo / "src" / "module"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert get_checkpoint_db_path() == str(tmp_git_repo / ".agentos" / "issue_workflow.db")


def test_m010_concurrent_execution_in_three_repos(tmp_path: Path) -> None:
    """The seed's manual test, done by the machine."""
    repos = [new_repo(tmp_path / name) for name in ("one", "two", "three")]
    running = [subprocess.Popen([sys.executable, LAUNCHER], cwd=repo, stderr=subprocess.PIPE) for repo in repos]
    said = [process.communicate(timeout=60)[1].decode() for process in running]
    assert [process.returncode for process in running] == [SETTLED] * 3
    for repo, text in zip(repos, said, strict=True):
        assert str(repo / ".agentos" / "issue_workflow.db") in text
        assert [path.name for path in (repo / ".agentos").iterdir()] == [".gitignore"]


# === Story 2.5.2: the checkpoint manager by itself ================================================================


def a_state(workflow_id: str = "w", tasks: int = 2, layer: int = 1) -> WorkflowState:
    return WorkflowState(
        workflow_id=workflow_id,  # type: ignore[arg-type]
        current_layer=layer,
        messages=({"role": "user", "content": "hello"}, {"role": "assistant", "content": {"text": "hi"}}),
        tasks=tuple(
            TaskEntry(
                task_id=f"t{number}",  # type: ignore[arg-type]
                status="complete",
                output={"number": number},
                execution_time_ms=1.5,
                layer=number % 2,
            )
            for number in range(tasks)
        ),
        decisions=({"gate_id": "approve:t1", "answer": "approved", "author": "me"},),
        context={"language": "en", "tries": 3},
    )


@pytest.fixture
def manager(place: Place) -> CheckpointManager:
    return CheckpointManager(place.database)


def test_save_checkpoint_succeeds_with_valid_state(manager: CheckpointManager) -> None:
    saved = manager.save_checkpoint("w", 1, a_state())
    assert isinstance(saved, Checkpoint)
    assert (saved.workflow_id, saved.layer) == ("w", 1)
    assert uuid.UUID(saved.id).version == 7
    assert saved.timestamp.tzinfo is not None
    assert saved.sequence > 0
    assert len(saved.digest) == 32
    assert saved.state == a_state()


def test_load_checkpoint_by_id_returns_correct_state(manager: CheckpointManager, place: Place) -> None:
    saved = manager.save_checkpoint("w", 1, a_state())
    manager.close()
    loaded = CheckpointManager(place.database).load_checkpoint(saved.id)
    assert loaded == saved
    assert loaded is not None
    assert loaded.state.tasks[1].output == {"number": 1}


def test_load_checkpoint_returns_none_for_non_existent_id(manager: CheckpointManager) -> None:
    assert manager.load_checkpoint("nonexistent") is None
    manager.save_checkpoint("w", 0, a_state())
    assert manager.load_checkpoint(str(uuid.uuid4())) is None
    assert manager.load_checkpoint("") is None


def test_looking_for_a_checkpoint_makes_no_database(manager: CheckpointManager, place: Place) -> None:
    assert manager.load_checkpoint("x") is None
    assert manager.get_latest_checkpoint("x") is None
    assert manager.list_checkpoints("x") == []
    assert not Path(place.database).exists()


def test_get_latest_checkpoint_returns_most_recent(manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """By sequence: a clock that goes backwards changes nothing."""
    from datetime import UTC, datetime, timedelta

    from agentos.workflow import checkpoint

    class Backwards(datetime):
        turns = 0

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            cls.turns += 1
            return datetime.now(UTC) - timedelta(hours=cls.turns)

    monkeypatch.setattr(checkpoint, "datetime", Backwards)
    saved = [manager.save_checkpoint("w", layer, a_state(layer=layer)) for layer in range(3)]
    assert saved[0].timestamp > saved[1].timestamp > saved[2].timestamp
    latest = manager.get_latest_checkpoint("w")
    assert latest is not None
    assert latest.id == saved[2].id
    assert [found.id for found in manager.list_checkpoints("w")] == [one.id for one in saved]


def test_get_latest_checkpoint_returns_none_for_non_existent_workflow(manager: CheckpointManager) -> None:
    assert manager.get_latest_checkpoint("w") is None
    manager.save_checkpoint("w", 0, a_state())
    assert manager.get_latest_checkpoint("v") is None


def test_complex_state_serializes_and_deserializes_correctly(manager: CheckpointManager) -> None:
    """Round trip: save, load, identical."""
    deep: Any = {"list": [1, 2.5, None, True, {"a": {"b": ["é", "\u2028", ""]}}], "big": 2**80, "negative": -0.0}
    state = WorkflowState(
        workflow_id="w",  # type: ignore[arg-type]
        current_layer=3,
        messages=({"role": "tool", "content": deep}, {"role": "system", "content": ""}),
        tasks=(
            TaskEntry(task_id="ok", status="complete", output=deep, layer=0),  # type: ignore[arg-type]
            TaskEntry(
                task_id="bad",  # type: ignore[arg-type]
                status="failed",
                error={"type": "ValueError", "text": "no", "traceback": "..."},
                layer=1,
            ),
            TaskEntry(task_id="skipped", status="skipped", layer=2),  # type: ignore[arg-type]
        ),
        decisions=({"gate_id": "g", "answer": "rejected", "reason": '"quoted"'},),
        context={"nested": deep, "": "blank key", "bytes": b"\x00\xff", "nan": float("inf")},
    )
    saved = manager.save_checkpoint("w", 3, state)
    loaded = manager.load_checkpoint(saved.id)
    assert loaded is not None
    assert canonical_json(loaded.state) == canonical_json(state)
    assert loaded.state.tasks[1].error == {"type": "ValueError", "text": "no", "traceback": "..."}


def test_prune_checkpoints_keeps_n_most_recent(place: Place) -> None:
    manager = CheckpointManager(place.database, auto_prune=False)
    saved = [manager.save_checkpoint("w", layer, a_state(layer=layer)) for layer in range(8)]
    other = manager.save_checkpoint("v", 0, a_state("v"))
    assert len(manager.list_checkpoints("w")) == 8

    assert manager.prune_checkpoints("w", keep=5) == 3

    assert [one.id for one in manager.list_checkpoints("w")] == [one.id for one in saved[3:]]
    assert manager.load_checkpoint(saved[0].id) is None
    assert [one.id for one in manager.list_checkpoints("v")] == [other.id]
    kept = manager.load_checkpoint(saved[3].id)
    assert kept is not None
    assert canonical_json(kept.state) == canonical_json(a_state(layer=3)), "pruning others changes no state"
    assert manager.prune_checkpoints("w", keep=1) == 4


def test_prune_checkpoints_with_no_old_checkpoints_returns_0(manager: CheckpointManager) -> None:
    for layer in range(3):
        manager.save_checkpoint("w", layer, a_state(layer=layer))
    assert manager.prune_checkpoints("w", keep=5) == 0
    assert manager.prune_checkpoints("w", keep=3) == 0


@pytest.mark.parametrize("keep", [0, -1])
def test_prune_checkpoints_of_all_is_an_error(manager: CheckpointManager, keep: int) -> None:
    manager.save_checkpoint("w", 0, a_state())
    with pytest.raises(AgentosError, match="Keep at least 1"):
        manager.prune_checkpoints("w", keep=keep)
    assert manager.get_latest_checkpoint("w") is not None


def test_auto_pruning_on_new_checkpoint_save(manager: CheckpointManager, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "agentos")
    saved = [manager.save_checkpoint("w", layer, a_state(layer=layer)) for layer in range(8)]
    assert [one.id for one in manager.list_checkpoints("w")] == [one.id for one in saved[3:]]
    assert "pruned 1 checkpoint(s) of w" in caplog.text


def test_load_checkpoint_rejects_corrupted_state_missing_field(manager: CheckpointManager, place: Place) -> None:
    saved = manager.save_checkpoint("w", 1, a_state())
    manager.close()
    tampered(place, "w", lambda body: body.pop("current_layer"), "state_saved")
    with pytest.raises(CheckpointCorruptedError, match="current_layer"):
        CheckpointManager(place.database).load_checkpoint(saved.id)


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("task_id"),
        lambda entry: entry.pop("status"),
        lambda entry: entry.update(unknown=1),
    ],
)
def test_load_checkpoint_rejects_a_task_with_missing_or_unknown_fields(
    manager: CheckpointManager, place: Place, change: Callable[[dict[str, Any]], Any]
) -> None:
    saved = manager.save_checkpoint("w", 1, a_state())
    manager.close()
    tampered(place, "w", lambda body: change(body["tasks"][0]), "state_saved")
    with pytest.raises(CheckpointCorruptedError, match="wrong shape"):
        CheckpointManager(place.database).load_checkpoint(saved.id)


def test_load_checkpoint_rejects_invalid_workflow_id(manager: CheckpointManager, place: Place) -> None:
    saved = manager.save_checkpoint("w", 1, a_state())
    manager.close()
    for invalid in ("", " ", "another"):
        sql(place, "UPDATE run SET id = ?", invalid)
        with pytest.raises(CheckpointCorruptedError):
            CheckpointManager(place.database).load_checkpoint(saved.id)


def test_a_changed_byte_is_told(manager: CheckpointManager, place: Place) -> None:
    """Corrupted checkpoint state: the error names the row, and nothing is deleted."""
    saved = manager.save_checkpoint("w", 1, a_state())
    manager.close()
    sql(place, "UPDATE event SET body = replace(body, 'hello', 'hallo')")
    with pytest.raises(CheckpointCorruptedError, match="event 1 of run w is damaged") as caught:
        CheckpointManager(place.database).load_checkpoint(saved.id)
    assert "agentos doctor --set-aside" in str(caught.value)
    assert sql(place, "SELECT count(*) FROM checkpoint") == [(1,)]


def test_state_invariants_violated_raise_state_invariant_error(manager: CheckpointManager, place: Place) -> None:
    twice = WorkflowState(workflow_id="w", tasks=a_state(tasks=1).tasks * 2)  # type: ignore[arg-type]
    for broken in (twice, a_state(layer=-1), a_state(" ")):
        with pytest.raises(StateInvariantError):
            manager.save_checkpoint(broken.workflow_id, 0, broken)
    with pytest.raises(StateInvariantError, match="lacks tasks"):
        manager.save_checkpoint(
            "w", 0, {"workflow_id": "w", "current_layer": 0, "messages": [], "decisions": [], "context": {}}
        )
    with pytest.raises(StateInvariantError, match="layer -1"):
        manager.save_checkpoint("w", -1, a_state())
    saved = manager.save_checkpoint("w", 0, a_state())
    manager.close()

    def double(body: dict[str, Any]) -> None:
        body["tasks"].append(body["tasks"][0])

    tampered(place, "w", double, "state_saved")
    with pytest.raises(StateInvariantError, match="twice"):
        CheckpointManager(place.database).load_checkpoint(saved.id)


def test_large_state_1000_tasks(manager: CheckpointManager) -> None:
    state = a_state(tasks=1000)
    saved = manager.save_checkpoint("w", 1, state)
    loaded = manager.load_checkpoint(saved.id)
    assert loaded is not None
    assert canonical_json(loaded.state) == canonical_json(state)


def test_pruning_failures_are_logged_and_tried_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Async pruning fails: log error, do not block the save, retry on the next one."""
    manager = CheckpointManager(place.database)
    broken = [True]

    def prune(real: Any, *args: Any) -> Any:
        if broken[0]:
            raise StoreUnavailableError("the disk is on fire")
        return real(*args)

    manager._store = wrapped(place, prune=prune).open(create=True)
    for layer in range(8):
        manager.save_checkpoint("w", layer, a_state(layer=layer))
    assert len(manager.list_checkpoints("w")) == 8
    assert "pruning checkpoints of w failed, tried again at the next save: the disk is on fire" in caplog.text
    broken[0] = False
    manager.save_checkpoint("w", 8, a_state(layer=8))
    assert len(manager.list_checkpoints("w")) == 5


# === Story 2.5.2: the executor saves =============================================================================


def layered(
    layers: int, width: int = 1, *, ran: list[str] | None = None, killer: Killer | None = None, at: int = -1
) -> Workflow:
    """Layers of tasks that leave messages and context; task `l<at>t0` asks the killer to strike."""
    flow = Workflow("layered")

    async def work(ctx: Context) -> dict[str, Any]:
        if ran is not None:
            ran.append(ctx.task_id)
        if killer is not None and ctx.task_id == f"l{at}t0":
            await killer.strike()
        ctx.message("assistant", f"turn of {ctx.task_id}")
        ctx.set(f"seen by {ctx.task_id}", True)
        return {"task": ctx.task_id}

    for layer in range(layers):
        for number in range(width):
            needs = [f"l{layer - 1}t{other}" for other in range(width)] if layer else []
            flow.add(f"l{layer}t{number}", work, needs=needs)
    return flow


def an_executor(place: Place, **options: Any) -> ControlledExecutor:
    return ControlledExecutor(CheckpointManager(place.database), options=DriveOptions(**options), root=place.root)


def execute(executor: ControlledExecutor, flow: Workflow, id: str = "w") -> list[ev.Event]:
    return asyncio.run(collected(executor.execute_stream(flow, workflow_id=id)))


def resumed(executor: ControlledExecutor, checkpoint_id: str, flow: Workflow | None) -> list[ev.Event]:
    return asyncio.run(collected(executor.resume_from_checkpoint(checkpoint_id, flow)))


def test_checkpoints_saved_after_each_layer_execution(place: Place) -> None:
    events = execute(an_executor(place), layered(3, 2))
    assert [cut.layer for cut in of_type(events, ev.Checkpointed)] == [0, 1, 2]
    stored = CheckpointManager(place.database).list_checkpoints("w")
    assert [one.layer for one in stored] == [0, 1, 2]
    assert [len(one.state.tasks) for one in stored] == [2, 4, 6]
    order = types(events)
    for layer in range(3):  # after the layer's last result, before the next layer starts
        cut = next(i for i, event in enumerate(events) if isinstance(event, ev.Checkpointed) and event.layer == layer)
        assert order[cut - 1] == "state_updated"
        results = [i for i, event in enumerate(events) if isinstance(event, ev.TaskComplete) and event.layer == layer]
        starts = [i for i, event in enumerate(events) if isinstance(event, ev.LayerStart) and event.layer > layer]
        assert max(results) < cut < min([*starts, len(events)])


def test_checkpoint_events_contain_valid_checkpoint_ids(place: Place) -> None:
    events = execute(an_executor(place), layered(3))
    manager = CheckpointManager(place.database)
    ids = checkpoints(events)
    assert len(set(ids)) == 3
    for event in of_type(events, ev.Checkpointed):
        assert uuid.UUID(event.checkpoint_id).version == 7
        found = manager.load_checkpoint(event.checkpoint_id)
        assert found is not None
        assert (found.layer, found.sequence, found.workflow_id) == (event.layer, event.seq, "w")


def _cuts_fail(place: Place, when: Callable[[int], bool] = lambda layer: True) -> Place:
    """A store whose journal works and whose checkpoints cannot be written."""

    def append(real: Any, lease: Any, events: Any, *args: Any, **named: Any) -> Any:
        if any(when(cut.layer) for cut in of_type(events, ev.Checkpointed)):
            raise CheckpointCutError("no room for checkpoints")
        return real(lease, events, *args, **named)

    return wrapped(place, append=append)


def test_checkpoint_save_failure_does_not_stop_execution(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    result = drive(_cuts_fail(place, lambda layer: layer == 1), layered(3), id="w")

    assert result.status == "complete"
    events = journal(place, "w")
    assert_well_formed(events)
    [failed] = of_type(events, ev.CheckpointFailed)
    assert (failed.layer, failed.error.type, failed.error.text) == (1, "CheckpointCutError", "no room for checkpoints")
    assert [cut.layer for cut in of_type(events, ev.Checkpointed)] == [0, 2]
    [record] = [r for r in caplog.records if "Checkpoint failed, workflow not resumable" in r.message]
    assert record.levelno == logging.ERROR
    assert "layer 2 of w" in record.message, "people count from one"
    assert "no room for checkpoints" in record.message
    assert [one.layer for one in CheckpointManager(place.database).list_checkpoints("w")] == [0, 2], "no made-up id"


def test_checkpoint_save_failure_is_told_live(place: Place) -> None:
    """The event is checkpoint_failed for those who listen, too, and its id names nothing that could be gone back to."""
    seen: list[ev.Event] = []

    async def scenario() -> None:
        from agentos.workflow.drive.drive import Drive

        async def read(one: Drive) -> None:
            seen.extend([event async for event in one.stream.subscribe(0)])

        reading: list[asyncio.Future[None]] = []
        driven: list[Drive] = []

        def started(one: Drive) -> None:
            driven.append(one)
            reading.append(asyncio.ensure_future(read(one)))

        await adrive(_cuts_fail(place), layered(2), id="w", started=started)
        await asyncio.gather(*reading)
        assert dict(driven[0].facts.cuts) == {}

    asyncio.run(scenario())
    assert seen == journal(place, "w")
    assert types(seen).count("checkpoint_failed") == 2


def test_checkpoint_save_failure_right_after_going_back(place: Place) -> None:
    """What the drive knows then is what the journal says without that which was rolled back."""
    flow = Workflow("f")
    flow.add("a", lambda: 1)
    flow.add("b", lambda: 2, needs=["a"])
    flow.add("off", lambda: 3, needs=["b"], if_="false")
    drive(place, flow, id="w")
    back = [cut.id for cut in CheckpointManager(place.database).list_checkpoints("w")][1]
    driven: list[Any] = []
    assert go_on(_cuts_fail(place), back, flow, started=driven.append).status == "complete"
    events = journal(place, "w")
    assert types(events)[-3:] == ["state_updated", "checkpoint_failed", "workflow_complete"]
    assert driven[0].facts == fold(WorkflowId("w"), events)


def test_checkpoint_save_failure_stops_if_strict(place: Place) -> None:
    ran: list[str] = []
    with pytest.raises(CheckpointCutError, match="checkpoint of layer 2 failed: no room for checkpoints"):
        drive(_cuts_fail(place, lambda layer: layer == 1), layered(3, ran=ran), id="w", strict_checkpoints=True)

    events = journal(place, "w")
    assert_well_formed(events)
    assert types(events)[-1] == "workflow_paused"
    assert [event.task_id for event in of_type(events, ev.TaskStart)] == ["l0t0", "l1t0"], "the next layer never began"
    assert ran == ["l0t0", "l1t0"]
    # What was done is kept: a resume goes on after it.
    assert go_on(place, "w", layered(3, ran=ran)).status == "complete"
    assert ran == ["l0t0", "l1t0", "l2t0"]


def test_strict_leaves_nobody_waiting_whose_start_was_not_written(place: Place) -> None:
    async def scenario() -> None:
        with pytest.raises(CheckpointCutError):
            await adrive(_cuts_fail(place), layered(2), id="w", strict_checkpoints=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scenario())


def test_strict_loses_no_result_that_came_in_the_same_moment(place: Place) -> None:
    """Decided after the cut that failed and thus not written: it is decided anew, by facts that know of the failure."""
    flow, ran = Workflow("f", schedule="ready"), list[str]()
    both = asyncio.Event()

    async def work(ctx: Context) -> str:
        ran.append(ctx.task_id)
        if {"slow", "after quick"} <= set(ran):
            both.set()
        await both.wait()
        return ctx.task_id

    async def quick(ctx: Context) -> None:
        ran.append(ctx.task_id)

    flow.add("slow", work)
    flow.add("quick", quick)
    flow.add("after quick", work, needs=["quick"])
    flow.add("last", quick, needs=["slow", "after quick"])
    with pytest.raises(CheckpointCutError):
        drive(_cuts_fail(place, lambda layer: layer == 0), flow, id="w", strict_checkpoints=True)
    events = journal(place, "w")
    assert_well_formed(events)
    assert types(events)[-1] == "workflow_paused"
    assert {event.task_id for event in of_type(events, ev.TaskComplete)} == {"slow", "quick", "after quick"}
    assert go_on(place, "w", flow).status == "complete"
    assert sorted(ran) == ["after quick", "last", "quick", "slow"]


def test_strict_and_interrupted_in_the_same_moment(place: Place) -> None:
    """What was made ready for after the cut is cancelled already when the cut fails, and its start never written."""
    ran: list[str] = []

    async def scenario() -> None:
        from tests.workflow.support import adrive

        loop = asyncio.get_running_loop()

        def append(real: Any, lease: Any, events: Any, *args: Any, **named: Any) -> Any:
            if any(cut.layer == 1 for cut in of_type(events, ev.Checkpointed)):
                loop.call_soon_threadsafe(driving.cancel)
                for _ in range(3):  # turns of the loop, in which the attempt ends
                    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
                raise CheckpointCutError("no room for checkpoints")
            return real(lease, events, *args, **named)

        flow = layered(3, ran=ran)
        driving = asyncio.ensure_future(adrive(wrapped(place, append=append), flow, id="w", strict_checkpoints=True))
        with pytest.raises(asyncio.CancelledError):
            await driving

    asyncio.run(scenario())
    events = journal(place, "w")
    assert_well_formed(events)
    assert types(events)[-1] == "workflow_paused"
    assert [event.task_id for event in of_type(events, ev.TaskStart)] == ["l0t0", "l1t0"]
    assert go_on(place, "w", layered(3, ran=ran)).status == "complete"
    assert ran == ["l0t0", "l1t0", "l2t0"]


def test_strict_does_not_call_a_run_complete_whose_last_checkpoint_failed(place: Place) -> None:
    with pytest.raises(CheckpointCutError):
        drive(_cuts_fail(place), layered(1), id="w", strict_checkpoints=True)
    events = journal(place, "w")
    assert_well_formed(events)
    assert "checkpoint_failed" in types(events)
    assert (types(events)[-1], "workflow_complete" in types(events)) == ("workflow_paused", False)
    assert go_on(place, "w", layered(1)).status == "complete", "once checkpoints can be written"
    assert [cut.layer for cut in of_type(journal(place, "w"), ev.Checkpointed)] == [0]


def test_checkpoint_save_failure_in_the_database_itself(place: Place) -> None:
    """A trigger refuses the row of a checkpoint; the events of the batch can be written."""
    drive(place, layered(1), id="first")
    sql(place, "CREATE TRIGGER refuse BEFORE INSERT ON checkpoint BEGIN SELECT RAISE(ABORT, 'refused'); END")
    assert drive(place, layered(2), id="w").status == "complete"
    assert [failed.layer for failed in of_type(journal(place, "w"), ev.CheckpointFailed)] == [0, 1]


def test_pruning_integration_keeps_only_the_five_most_recent(place: Place) -> None:
    events = execute(an_executor(place), layered(8))
    assert len(checkpoints(events)) == 8
    kept = CheckpointManager(place.database).list_checkpoints("w")
    assert [one.id for one in kept] == checkpoints(events)[3:]
    assert len(journal(place, "w")) == len(events), "events stay"


def test_pruning_integration_manual_pruning_works(place: Place) -> None:
    events = execute(an_executor(place, keep=0), layered(8))
    manager = CheckpointManager(place.database)
    assert len(manager.list_checkpoints("w")) == 8
    assert manager.prune_checkpoints("w", keep=5) == 3
    assert [one.id for one in manager.list_checkpoints("w")] == checkpoints(events)[3:]
    with pytest.raises(AgentosError, match="cannot keep -1"):
        DriveOptions(keep=-1)


def test_pruning_failure_in_a_run_is_logged_and_tried_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    tried: list[bool] = []

    def prune(real: Any, *args: Any) -> Any:
        tried.append(len(tried) < 6)
        if tried[-1]:
            raise StoreUnavailableError("busy elsewhere")
        return real(*args)

    flow = Workflow("f")
    for layer in range(8):

        async def waits(layer: int = layer) -> None:
            await soon(lambda: len(tried) >= layer)  # pruned between two layers, when there is nothing else to write

        flow.add(f"t{layer}", waits, needs=[f"t{layer - 1}"] if layer else [])

    assert drive(wrapped(place, prune=prune), flow, id="w").status == "complete"
    assert caplog.text.count("pruning checkpoints of w failed, tried again at the next save: busy elsewhere") == 6
    assert len(CheckpointManager(place.database).list_checkpoints("w")) == 5


# === Story 2.5.2: resume ==========================================================================================


def test_resume_from_checkpoint_restores_state_correctly(place: Place) -> None:
    """From the checkpoint of layer 2 of 5: exactly what came after runs, on the whole state."""
    ran: list[str] = []
    executor = an_executor(place)
    events = execute(executor, layered(5, ran=ran))
    whole = executor.state
    del ran[:]

    seen = resumed(executor, checkpoints(events)[2], layered(5, ran=ran))

    assert ran == ["l3t0", "l4t0"]
    assert executor.state is not None
    assert whole is not None
    assert comparable(executor.state) == comparable(whole)
    assert executor.state.workflow_id == "w"
    assert executor.state.current_layer == 4
    assert_well_formed(journal(place, "w"))
    assert types(seen)[-1] == "workflow_complete"


def test_completed_layers_skipped(place: Place) -> None:
    """No re-execution, and no event for a task that was skipped that way; one event says so."""
    killer, ran = Killer(), list[str]()
    flow = layered(4, 2, ran=ran, killer=killer, at=2)
    kill(place, flow, killer, "w")
    del ran[:]
    go_on(place, "w", flow)
    assert not [task for task in ran if task[1] in "01"]
    events = journal(place, "w")
    [plan] = of_type(events, ev.ResumePlanned)
    assert plan.skipped_layers == 2
    later = [event for event in events if event.seq > plan.seq]
    assert {event.task_id[:2] for event in of_type(later, ev.TaskStart)} <= {"l2", "l3"}


def test_execution_continues_from_correct_layer(place: Place) -> None:
    killer = Killer()
    flow = layered(4, killer=killer, at=2)
    kill(place, flow, killer, "w")
    manager = CheckpointManager(place.database)
    latest = manager.get_latest_checkpoint("w")
    assert latest is not None
    assert latest.layer == 1

    seen = resumed(an_executor(place), latest.id, flow)

    assert isinstance(seen[0], ev.WorkflowStart)
    assert (seen[0].resumed_from, seen[0].total_layers) == (1, 4)
    assert [event.layer for event in of_type(seen, ev.LayerStart)] == [2, 3], "at checkpoint.layer + 1"
    assert [event.layer for event in of_type(seen, ev.Checkpointed)] == [2, 3]


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_state_consistency_verified_post_resume(place: Place, layer: int) -> None:
    """Whichever layer the crash falls into, the final state is that of a run without one."""
    uncrashed = drive(place, layered(4, 3), id="whole").state
    killer = Killer()
    flow = layered(4, 3, killer=killer, at=layer)
    kill(place, flow, killer, "w")
    state = go_on(place, "w", flow).state
    assert comparable(state) == comparable(uncrashed)
    assert len(state.tasks) == len({entry.task_id for entry in state.tasks}) == 12


def test_multi_turn_conversation_restored(place: Place) -> None:
    killer = Killer()
    flow = layered(3, 2, killer=killer, at=1)
    kill(place, flow, killer, "w")
    state = go_on(place, "w", flow).state
    assert [message["content"] for message in state.messages] == [
        f"turn of l{layer}t{number}" for layer in range(3) for number in range(2)
    ]
    assert all(message["role"] == "assistant" for message in state.messages)
    assert set(state.context) == {f"seen by l{layer}t{number}" for layer in range(3) for number in range(2)}


SCRIPT = """
import os, signal, sys
from agentos import Workflow, run, resume

flow = Workflow("crashing")

def work(ctx):
    with open("ran", "a") as file:
        file.write(ctx.task_id + " ")
    if ctx.task_id == os.environ.get("DIE_IN"):
        os.kill(os.getpid(), signal.SIGKILL)
    ctx.message("assistant", ctx.task_id)
    return ctx.task_id.upper()

for number in range(4):
    flow.add(f"t{number}", work, needs=[f"t{number - 1}"] if number else [])

if __name__ == "__main__":
    result = resume("w") if sys.argv[1:] == ["resume"] else run(flow, workflow_id="w")
    print(result.status, *(message["content"] for message in result.state.messages), *result.outputs.values())
"""


@pytest.mark.parametrize(
    ("layer", "again"),
    [
        pytest.param(0, "t0 t1 t2 t3", id="crash during layer 0, resume from start"),
        pytest.param(2, "t2 t3", id="crash during layer 2, resume after the checkpoint of layer 1"),
        pytest.param(3, "t3", id="crash during final layer, resume completes workflow"),
    ],
)
def test_resume_chaos_real_crashes(tmp_git_repo: Path, layer: int, again: str) -> None:
    (tmp_git_repo / "flow.py").write_text(SCRIPT)
    crashed = python("flow.py", cwd=tmp_git_repo, env={"DIE_IN": f"t{layer}"})
    assert crashed.returncode == -9
    (tmp_git_repo / "ran").unlink()

    done = python("flow.py", "resume", cwd=tmp_git_repo)

    assert done.stdout == "complete t0 t1 t2 t3 T0 T1 T2 T3\n", done.stderr
    assert (tmp_git_repo / "ran").read_text().split() == again.split()


def test_idempotent_task_re_run_produces_same_result(place: Place) -> None:
    killer, file = Killer(), place.root / "out.txt"
    flow = Workflow("f")

    async def writes(ctx: Context) -> str:
        file.write_text("the whole content")  # not appended: running it twice is running it once
        if ctx.attempt == 1:
            await killer.strike()
        return file.read_text()

    flow.add("writes", writes, effects="files", idempotent=True)
    kill(place, flow, killer)
    assert go_on(place, "run", flow).outputs == {"writes": "the whole content"}


def test_non_idempotent_task_is_not_run_again_unasked(place: Place) -> None:
    killer, calls = Killer(), list[int]()
    flow = Workflow("f")

    async def pays(ctx: Context) -> str:
        calls.append(ctx.attempt)
        await killer.strike()
        return "paid"

    flow.add("pays", pays, effects="external")
    kill(place, flow, killer)
    result = go_on(place, "run", flow)
    assert (result.status, calls) == ("waiting", [1])
    assert list(result.gates) == ["ask:pays"]


def test_large_state_1000_tasks_resumes(place: Place) -> None:
    killer, ran = Killer(), list[str]()
    flow = layered(2, 500, ran=ran, killer=killer, at=1)
    kill(place, flow, killer, "w")
    del ran[:]
    result = go_on(place, "w", flow)
    assert (result.status, len(result.state.tasks), len(result.state.messages)) == ("complete", 1000, 1000)
    assert not [task for task in ran if task.startswith("l0")]


# --- the workflow changed between crash and resume ----------------------------------------------------------------


def test_dag_structure_changed_layers_added(place: Place) -> None:
    """Five layers became seven: the new ones run."""
    killer = Killer()
    kill(place, layered(5, killer=killer, at=3), killer, "w")
    ran: list[str] = []
    result = go_on(place, "w", layered(7, ran=ran))
    assert result.status == "complete"
    assert ran == ["l3t0", "l4t0", "l5t0", "l6t0"]
    [plan] = of_type(journal(place, "w"), ev.ResumePlanned)
    assert [row.task_id for row in plan.verdicts if row.verdict == "new"] == ["l5t0", "l6t0"]


def test_dag_structure_changed_layer_removed(place: Place) -> None:
    """Warned about, and not run; what was done stays done."""
    killer = Killer()
    kill(place, layered(5, killer=killer, at=3), killer, "w")
    ran: list[str] = []
    result = go_on(place, "w", layered(4, ran=ran))
    assert (result.status, ran) == ("complete", ["l3t0"])
    [plan] = of_type(journal(place, "w"), ev.ResumePlanned)
    [gone] = [row for row in plan.verdicts if row.verdict == "orphan"]
    assert (gone.task_id, gone.reason) == ("l4t0", "no longer in the workflow; not run")


def test_dag_structure_changed_new_work_in_a_finished_layer_runs(place: Place) -> None:
    """Skipping goes by task, not by the number of the layer."""
    killer, ran = Killer(), list[str]()
    kill(place, layered(3, killer=killer, at=2), killer, "w")
    flow = layered(3, ran=ran)

    async def late(ctx: Context) -> str:
        ran.append("late")
        return "late"

    flow.add("late", late)
    flow.add("uses", lambda late: late + "r")
    result = go_on(place, "w", flow)
    assert result.status == "complete"
    assert result.outputs["uses"] == "later"
    assert sorted(ran) == ["l2t0", "late"]


def test_dag_structure_changed_is_refused_if_strict(place: Place) -> None:
    from agentos.exceptions import RunRefusedError

    killer = Killer()
    kill(place, layered(3, killer=killer, at=1), killer, "w")
    before = len(journal(place, "w"))
    with pytest.raises(RunRefusedError, match="l3t0 is new"):
        go_on(place, "w", layered(4), strict=True)
    assert len(journal(place, "w")) == before


# --- resume failures ----------------------------------------------------------------------------------------------


def test_resume_with_invalid_checkpoint_id_raises_checkpoint_not_found_error(place: Place) -> None:
    missing = str(uuid.uuid4())
    execute(an_executor(place), layered(1))
    with pytest.raises(CheckpointNotFoundError, match=missing) as caught:
        resumed(an_executor(place), missing, layered(1))
    assert caught.value.checkpoint_id == missing
    with pytest.raises(CheckpointNotFoundError):
        go_on(place, missing, layered(1))


def test_resume_of_a_pruned_checkpoint_is_not_found_and_says_what_to_do(place: Place) -> None:
    events = execute(an_executor(place), layered(7))
    with pytest.raises(CheckpointNotFoundError, match="may have been pruned"):
        resumed(an_executor(place), checkpoints(events)[0], layered(7))


def test_resume_with_corrupted_state_raises_checkpoint_corrupted_error(place: Place) -> None:
    """And names the newest checkpoint that can still be used."""
    killer = Killer()
    flow = layered(4, killer=killer, at=3)
    kill(place, flow, killer, "w")
    sound = CheckpointManager(place.database).list_checkpoints("w")[1]
    sql(place, "UPDATE event SET body = replace(body, 'l2t0', 'l2tX') WHERE seq > ?", sound.sequence)
    with pytest.raises(CheckpointCorruptedError) as caught:
        go_on(place, "w", flow)
    assert f"newest sound checkpoint is {sound.id} (layer 2)" in str(caught.value)


def test_state_update_that_breaks_an_invariant_leaves_the_old_state(place: Place) -> None:
    state = a_state()
    with pytest.raises(StateInvariantError):
        update_state(state, {"current_layer": -1})
    assert state == a_state()

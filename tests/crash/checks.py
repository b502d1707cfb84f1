"""What must hold of a journal after any number of crashes, and of the state it folds to."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts, counting, workflow_state
from agentos.machine.resume import MAX_CUTS
from agentos.values import encode_value

TIMES = ("execution_time_ms",)
ENDS = (ev.TaskComplete, ev.TaskError, ev.TaskSkipped)


def canonical_state(facts: Facts, root: Path) -> dict[str, Any]:
    """A run as it ended, without times, durations, attempt counts and sequences, and without where it was.

    Questions that only a crash makes somebody ask (`ask`) are left out too: the uncrashed run had none.
    """
    state = json.loads(encode_value(workflow_state(facts)).replace(str(root).encode(), b"ROOT"))
    state["decisions"] = [row for row in state["decisions"] if row["kind"] != "ask"]
    for entry in state["tasks"]:
        for name in TIMES:
            del entry[name]
    return {"status": facts.status, **state}


def check_journal(events: Sequence[ev.Event], *, killed: Collection[int]) -> None:
    """`killed` are the pids of drivers that did not end in order."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "the sequence has holes"
    _check_drives(events, killed)
    counted = counting(events)
    _check_tasks(counted)
    _check_commands(counted)
    layers = [event.layer for event in counted if isinstance(event, ev.Checkpointed)]
    assert layers == sorted(set(layers)), f"layers were cut as {layers}"


def _check_drives(events: Sequence[ev.Event], killed: Collection[int]) -> None:
    drives: list[list[ev.Event]] = []
    for event in events:
        if isinstance(event, ev.WorkflowStart):
            drives.append([])
        assert drives, f"event {event.seq} ({event.type}) comes before the first drive"
        drives[-1].append(event)
    tokens = [event.token for event in events if isinstance(event, ev.LeaseTaken)]
    assert tokens == sorted(set(tokens)), f"tokens of the drives: {tokens}"
    assert len(tokens) == len(drives), f"{len(drives)} drives and {len(tokens)} leases"
    for number, drive in enumerate(drives, 1):
        start, lease = drive[0], drive[1]
        assert isinstance(start, ev.WorkflowStart), "a drive begins with its start"
        assert isinstance(lease, ev.LeaseTaken), f"drive {number} does not say who drives"
        assert start.drive == number, f"drive {number} says it is {start.drive}"
        pid = int(lease.holder.split()[1])
        terminal = [event.type for event in drive if isinstance(event, ev.TERMINAL)]
        # A driver killed after its terminal event has one as well.
        allowed = {0, 1} if pid in killed else {1}
        assert len(terminal) in allowed, f"drive {number} (process {pid}) has the terminal events {terminal}"
        if terminal:
            assert isinstance(drive[-1], ev.TERMINAL), f"drive {number} goes on after {terminal[0]}: {drive[-1].type}"


def _check_tasks(counted: Iterable[ev.Event]) -> None:
    """Every attempt is accounted for: it ended the task, was retried, or was interrupted; a task ends once."""
    starts: dict[str, list[int]] = {}
    closed: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    happened: set[str] = set()
    about_steps: set[str] = set()
    for event in counted:
        match event:
            case ev.TaskStart():
                assert not ends[event.task_id], f"{event.task_id} was started again after it had ended"
                starts.setdefault(event.task_id, []).append(event.attempt)
            case ev.TaskRetry() | ev.TaskSuspended():
                closed[event.task_id] += 1
            case ev.DecisionRequired(step=int()):
                about_steps.add(event.gate_id)
            case ev.ResumePlanned():
                closed.update(event.cut_off)
                ends -= Counter(dict.fromkeys(event.reset, 1))
            case ev.DecisionMade(answer="happened") if event.gate_id not in about_steps:
                happened.add(event.task_id or "")
            case ev.TaskComplete() | ev.TaskError() | ev.TaskSkipped():
                ends[event.task_id] += 1
                attempt = 0 if isinstance(event, ev.TaskSkipped) else event.attempt
                closed[event.task_id] += bool(attempt) and event.task_id not in happened
    twice = [task_id for task_id, count in ends.items() if count != 1]
    assert not twice, f"recorded other than once: {twice}"
    for task_id, attempts in starts.items():
        assert attempts == list(range(1, len(attempts) + 1)), f"attempts of {task_id}: {attempts}"
        assert closed[task_id] == len(attempts), (
            f"{task_id} was started {len(attempts)} times; {closed[task_id]} attempts are accounted for"
        )
        assert ends[task_id], f"{task_id} was started and never ended"


def _check_commands(counted: Iterable[ev.Event]) -> None:
    settled = Counter(
        event.command_id for event in counted if isinstance(event, (ev.CommandApplied, ev.CommandRefused))
    )
    twice = [command_id for command_id, count in settled.items() if count != 1]
    assert not twice, f"commands dealt with more than once: {twice}"
    refused = [event for event in counted if isinstance(event, ev.CommandRefused)]
    assert not refused, f"a command was refused: {refused}"


def check_trace(events: Sequence[ev.Event], trace: Sequence[dict[str, Any]]) -> None:
    """What the bodies saw against what the journal says: nothing ran that was not durable first, nothing ran twice."""
    executed = Counter((line["task"], line["attempt"]) for line in trace)
    again = [attempt for attempt, count in executed.items() if count > 1]
    assert not again, f"attempts executed more than once: {again}"
    started = {(event.task_id, event.attempt) for event in events if isinstance(event, ev.TaskStart)}
    unknown = [attempt for attempt in executed if attempt not in started]
    assert not unknown, f"executed, and the journal knows nothing of it: {unknown}"
    happened = {event.task_id for event in events if isinstance(event, ev.DecisionMade) and event.answer == "happened"}
    recorded = {(event.task_id, event.attempt) for event in events if isinstance(event, ev.TaskComplete)}
    never = [done for done in recorded if done[1] and done[0] not in happened and done not in executed]
    assert not never, f"recorded as done, and never executed: {never}"
    unapproved = [line for line in trace if line.get("approved") is False]
    assert not unapproved, f"ran before its approval was durable: {unapproved}"
    keys = Counter(task for task, _ in {(line["task"], line["key"]) for line in trace if "key" in line})
    changed = [task for task, count in keys.items() if count > 1]
    assert not changed, f"the idempotency key changed over attempts of {changed}"


def check_at_most_once(trace: Sequence[dict[str, Any]], tasks: Iterable[str]) -> None:
    """An external effect that may not be repeated, with somebody who answers honestly whether it took place."""
    for task in tasks:
        count = sum(line["task"] == task for line in trace)
        assert count == 1, f"the effect of {task} took place {count} times"


def check_file(database: Path) -> None:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        [(verdict,)] = connection.execute("PRAGMA integrity_check").fetchall()
        assert verdict == "ok", f"integrity_check: {verdict}"
        left = connection.execute("SELECT count(*) FROM inbox WHERE consumed_at IS NULL").fetchone()[0]
        assert not left, f"{left} commands were left in the inbox"
    finally:
        connection.close()


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file, link and folder of a worktree with its bytes and its mode."""
    found: dict[str, tuple[bytes, int]] = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in (".git", ".agentos", "__pycache__")]
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.is_symlink():
                content = os.fsencode(os.readlink(path))
            else:
                content = b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(root))] = content, path.lstat().st_mode
    return found


def check_worktrees(root: Path) -> None:
    """No worktree of an isolated task is left, neither as a folder nor in git's list."""
    left = [path for folder in (".agentos/worktrees", ".git/worktrees") for path in root.joinpath(folder).glob("*")]
    assert not left, f"worktrees were left: {left}"


def check_questions(events: Sequence[ev.Event], effects: tuple[str, ...]) -> None:
    """Only what has an effect that cannot be put back is asked about, or was cut off so often that it seems to kill."""
    verdicts = [row for event in events if isinstance(event, ev.ResumePlanned) for row in event.verdicts]
    tried = {row.task_id for row in verdicts if row.reason == f"was interrupted {MAX_CUTS} times in a row"}
    gates = {event.task_id or "" for event in events if isinstance(event, ev.DecisionRequired) and event.kind == "ask"}
    needless = sorted(task for task in gates - tried if not task.startswith(effects))
    assert not needless, f"it was asked about {', '.join(needless)}"

"""Files that an approval is about: those that the task's command names, compared again when the task would start.

Changes that tasks of this run make do not count: an approval then holds for what they left.
"""

from __future__ import annotations

from collections.abc import Iterator

from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import CoveredFilesChanged, FilesSeen


def files_seen(board: Board, given: FilesSeen) -> None:
    """Look at the task again, with what was seen. Where nobody can look, it is left to a drive that can."""
    board.looks_wanted.discard(given.task_id)
    if given.files is not None and given.task_id in board.plan.tasks:
        board.seen[given.task_id] = given.files
        board.frontier.offer(given.task_id)


def covered_files_changed(board: Board, given: CoveredFilesChanged) -> None:
    """A task of this run changed files behind an approval: from now on it is about these."""
    gate = board.facts.gates.get(given.gate_id)
    if gate is None or gate.covers is None:
        return
    files = {
        path: after
        for path in {**given.before, **given.after}
        if (after := given.after.get(path, "")) not in (approved := gate.covers.get(path, ("",)))
        # What differed before the task began was not its doing.
        and given.before.get(path, "") in approved
    }
    if files:
        board.emit(ev.CoverChanged(gate_id=given.gate_id, task_id=given.task_id, files=dict(sorted(files.items()))))


def covering_gates(facts: Facts) -> Iterator[tuple[GateId, TaskId]]:
    """Gates that are about files and whose task has not ended, each with that task."""
    for gate_id, gate in facts.gates.items():
        task_id = gate.opened.task_id
        if gate.covers is not None and task_id is not None and not facts.task(task_id).ended:
            yield gate_id, task_id

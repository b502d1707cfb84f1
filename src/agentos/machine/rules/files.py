"""The worktree's files, as far as a run knows them: snapshots that were taken, and files that an approval is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import CaptureEnded, CoveredFilesChanged, FilesSeen
from agentos.machine.rules import merges

_SHOWN = 10


def wait_for_capture(board: Board, layer: int) -> bool:
    """Whether the checkpoint of a finished layer has to wait until the files were merged and captured."""
    if merges.pending(board, layer):
        if board.captures and merges.may_go_on(board, layer):
            board.capture_wanted = layer
        return True
    # A run that never had a file task has nothing to capture, and asks git for nothing.
    if not board.captures or board.facts.files is None or board.captured_layer == layer:
        return False
    board.capture_wanted = layer
    return True


def record_capture(board: Board, given: CaptureEnded) -> None:
    """Write a snapshot down, unless the newest one says the same already."""
    if given.why == "merge" and (board.facts.merge is None or not board.facts.merge.tree):
        return  # set aside meanwhile
    if given.why in ("layer", "merge"):
        board.capture_wanted = None
        # Else it was merged for a task that could not wait for the rest.
        if not board.frontier.has_unfinished(given.layer):
            board.captured_layer, board.uncaptured = given.layer, given.problem
        if given.changed:
            _name_suspects(board, given)
    if given.why == "turn":
        # What an agent has done so far. One that could not be captured is no point to go on from, and no harm.
        if given.task_id in board.facts.running and given.snapshot and not given.partial:
            point, tree = given.snapshot, given.tree
            board.emit(ev.FilesCaptured(snapshot=point, tree=tree, why="turn", task_id=given.task_id, base=given.base))
        return
    if given.together and given.changed and given.together[0] in board.plan.tasks:
        board.warn(
            board.plan.tasks[given.together[0]],
            f"{_join_names(given.together)} were at work at the same time; which of them changed what cannot be told: "
            f"{_join_names(given.changed)} (isolation 'worktree' keeps them apart)",
        )
    if given.problem:
        board.emit(ev.TaskWarning(message=f"the files of the worktree cannot be captured: {given.problem}"))
    for path in given.left:
        board.emit(ev.TaskWarning(message=f"what isolated tasks did was not written: {path}"))
    known = board.facts.files
    said = known is not None and (known.tree, known.open) == (given.tree, False) and board.facts.half_done is None
    if said and given.why not in ("attempt", "merge") and set(given.output) <= set(board.facts.own_output):
        return
    if given.snapshot or given.why in ("attempt", "merge"):
        event = ev.FilesCaptured(
            snapshot=given.snapshot,
            tree=given.tree,
            why=given.why,
            task_id=given.task_id,
            partial=given.partial,
            output=given.output,
            beside=given.beside,
            together=given.together,
        )
        board.emit(event)
    if given.why == "merge":
        board.frontier.release_merged()


def snapshot_of(facts: Facts) -> str:
    """What a checkpoint cut now names; empty where there is nothing to name."""
    return facts.files.snapshot if facts.files is not None and not facts.files.open else ""


def snapshots_in_use(facts: Facts, *, looked_at: bool = True) -> set[str]:
    """The snapshots that the run may still have to go back to, or on from; what checkpoints name comes on top.

    `looked_at`: also what candidates of a run that is complete left, and nobody but a reader needs any more.
    """
    used = {facts.files.snapshot} if facts.files is not None else set()
    if facts.half_done is not None:
        used.add(facts.half_done.before.snapshot)
    if facts.merge is not None:
        used.add(facts.merge.snapshot)
    given_up = facts.candidates if facts.status == "complete" and not looked_at else {}
    left = facts.candidates if not given_up else {}
    used |= {
        known.verified.snapshot
        for task_id, known in facts.tasks.items()
        if known.verified is not None and task_id not in given_up
    }
    for handed in (*facts.unmerged.values(), *left.values()):
        used |= {handed.base, handed.snapshot}
    for turn in facts.turns.values():
        used |= {turn.base, turn.snapshot}
    return used - {""}


def _name_suspects(board: Board, given: CaptureEnded) -> None:
    """Files changed and no file task was at work: somebody's hands, or a task that says it changes none."""
    tasks = (board.plan.tasks[name] for name in board.plan.layers[given.layer])
    suspects = [
        task.id
        for task in tasks
        if "files" not in task.definition.effects
        and task.definition.kind in ("python", "shell")
        and board.facts.task(task.id).attempts
    ]
    if not suspects:
        return
    board.warn(
        board.plan.tasks[suspects[0]],
        f"files changed in layer {given.layer + 1} although no task that says so was at work: "
        f"{_join_names(given.changed)} (declared without file effects: {_join_names(suspects)})",
    )


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")


# --- behind approvals -------------------------------------------------------------------------------------------------
#
# Those that the task's command names are compared again when the task would start. Changes that tasks of this run make
# do not count: an approval then holds for what they left.


def files_seen(board: Board, given: FilesSeen) -> None:
    """Look at the task again, with what was seen. Where nobody can look, it is left to a drive that can."""
    board.looks_wanted.discard(given.task_id)
    if given.files is not None and given.task_id in board.plan.tasks:
        board.seen[given.task_id] = given
        board.frontier.offer(given.task_id)


def covered_files_changed(board: Board, given: CoveredFilesChanged) -> None:
    """A task of this run changed files behind an approval: from now on it is about these.

    Not where it shows what was verified: what others than its own task do to files takes that back.
    """
    gate = board.facts.gates.get(given.gate_id)
    if gate is None or gate.covers is None:
        return
    files = {
        path: after
        for path in {**given.before, **given.after}
        if (after := given.after.get(path, "")) not in (approved := gate.covers.get(path, ("",)))
        # What differed before the task began was not its doing.
        and given.before.get(path, "") in approved
        and (path != ev.ALL_FILES or (after and given.task_id == gate.opened.task_id))
    }
    if files:
        board.emit(ev.CoverChanged(gate_id=given.gate_id, task_id=given.task_id, files=dict(sorted(files.items()))))


def covering_gates(facts: Facts) -> Iterator[tuple[GateId, TaskId]]:
    """Gates that are about files and whose task has not ended, each with that task."""
    for gate_id, gate in facts.gates.items():
        task_id = gate.opened.task_id
        if gate.covers is not None and task_id is not None and not facts.task(task_id).ended:
            yield gate_id, task_id

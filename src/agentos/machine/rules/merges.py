"""Merging what isolated tasks did to files: whoever drives merges and writes, here it is decided what follows.

    a layer with isolated tasks is finished     whoever drives looks: the trees are merged, nothing is written
    `ready`: a task of a later layer could go   the same, with all that have finished by then; it waits for them
    everything goes together                    files_merged, durable; then it is written, and captured
    it does not                                 files_merged with the conflicts, and a gate: its answer is used then
    the answer is `agent:NAME`                  an isolated task is added to the layer; once it has ended a gate asks
                                                again, with what the agent made of the conflicts as one more version:
                                                where nobody chooses it, nothing of it is taken

Killed anywhere, the next drive does what is left: merging looks at trees alone, and writing can be repeated.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

from agentos.dag.define.mapping import task_from_mapping
from agentos.dag.define.model_calls import AGENTS
from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import without_references
from agentos.dag.plan.findings import nearest
from agentos.dag.plan.plan import PlannedTask
from agentos.exceptions import CommandRefusedError
from agentos.ids import GateId, TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board, order
from agentos.machine.facts.fold import Facts, GateFacts
from agentos.machine.frontier import by_layers
from agentos.machine.inputs import MergeEnded
from agentos.machine.rules.gates import answer_command, newest_gate
from agentos.values import decode_value

WORKTREE = "worktree"
_FORMS = "'worktree', 'task:ID' or 'file:PATH' (a merged file that you prepared)"
_SHOWN = 10
_AGENT = "agent:"
CUT_SHORT = "\n…"
"""At the end of conflicts that are too long to be shown whole."""
_LONGEST_PURPOSE = 2_000
_RESOLVE = """\
Several tasks changed the same parts of files, each in a copy of its own. Resolve the conflicts between them.

You have a copy of the files as they were before these tasks: nothing of what they did is in it. Below is each part \
in conflict, as it is here (`worktree`) and as each task left it. Edit these files so that each such part does what \
all of the tasks were after. Leave everything else alone: what else they did is added afterwards. No conflict markers \
may stay.

What the tasks were after:
{tasks}

The conflicts:
{conflicts}
"""


class Choice(NamedTuple):
    """Which version of a path to take: that of the worktree, of a task, or a file."""

    kind: Literal["worktree", "task", "file"]
    name: str = ""


class Work(NamedTuple):
    """What is to be merged, and what is known of it."""

    layer: int
    tasks: Mapping[TaskId, ev.TaskFiles]
    """In plan order."""
    decided: ev.FilesMerged | None
    """A merge of these that is on the record."""
    choices: Mapping[str, Choice]
    """What somebody answered to the conflicts in it."""
    resolvers: frozenset[TaskId] = frozenset()
    """Those of the tasks that resolve conflicts of the others: what they did counts where somebody chooses it."""


def parse_choice(text: object) -> Choice | None:
    """A choice as it is written in an answer; None where it is none."""
    if text == WORKTREE:
        return Choice("worktree")
    kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not name or kind not in ("task", "file"):
        return None
    return Choice("task" if kind == "task" else "file", name)


def choice_text(choice: Choice) -> str:
    """A choice as it is written in an answer."""
    return f"{choice.kind}:{choice.name}" if choice.name else choice.kind


def pending(board: Board, layer: int) -> list[PlannedTask]:
    """The finished tasks up to this layer whose changes are not in the worktree yet, in plan order.

    Where tasks start as soon as they can: of every layer, since a checkpoint may leave nothing unmerged behind. Those
    that finish while a merge is on the record wait for the next one. By layers they do not: the merge on the record may
    be that of a later layer, with which a task that ran again cannot wait.
    """
    facts = board.facts
    everything = not by_layers(board.plan)
    asked = facts.merge if everything else None
    if asked is not None and _resolver_of(facts, asked.layer):
        asked = None  # to be merged anew, with what the agent made of it
    names = asked.tasks if asked is not None else facts.unmerged
    known = (board.plan.tasks.get(task_id) for task_id in names if task_id in facts.unmerged)
    return sorted((task for task in known if task is not None and (everything or task.layer <= layer)), key=order)


def must_merge_first(board: Board, task: PlannedTask) -> bool:
    """Whether something must be merged before the task may start; if so, that is asked for. Never by layers."""
    if by_layers(board.plan) or not board.facts.unmerged:
        return False
    unmerged = (board.plan.tasks.get(task_id) for task_id in board.facts.unmerged)
    if not any(other is not None and other.layer < task.layer for other in unmerged):
        return False
    request_merge(board)
    return True


def request_merge(board: Board) -> None:
    """Have whoever drives merge what has finished, unless somebody has to answer first."""
    layer = board.facts.merge.layer if board.facts.merge is not None else board.frontier.next_cut
    if board.captures and board.capture_wanted is None and may_go_on(board, layer):
        board.capture_wanted = layer


def release_waiting(board: Board) -> None:
    """Look again at tasks that wait for a merge: it was made, is not needed any more, or can be made now."""
    if board.facts.unmerged:
        request_merge(board)
    else:
        board.frontier.release_merged()


def may_go_on(board: Board, layer: int) -> bool:
    """Whether there is something to do now; not while somebody is asked or an agent resolves it, nor after a no."""
    gate, _ = newest_gate(board.facts, "merge", str(layer))
    if gate is not None and (gate.opened.gate_id in board.facts.open_gates or gate.answer == "rejected"):
        return False
    resolver = _resolver_of(board.facts, layer)
    return resolver is None or resolver not in board.plan.tasks or board.facts.task(resolver).ended


def is_outdated(board: Board, gate: ev.DecisionRequired) -> bool:
    """Whether it asks about results that are no longer the ones to be merged."""
    return gate.shown != _digest(board, gate.layer)


def choices(facts: Facts, layer: int) -> dict[str, Choice]:
    """What was answered last, for the paths that were shown then."""
    gate, _ = newest_gate(facts, "merge", str(layer))
    answered = decode_value(gate.output) if gate is not None and gate.answer == "approved" else None
    parsed = {path: parse_choice(text) for path, text in answered.items()} if isinstance(answered, Mapping) else {}
    return {path: choice for path, choice in parsed.items() if choice is not None}


def _resolver_of(facts: Facts, layer: int) -> TaskId | None:
    """The task that resolves the conflicts asked about last, where the answer was to let an agent do that."""
    gate, _ = newest_gate(facts, "merge", str(layer))
    return _resolver_id(gate.opened.gate_id) if gate is not None and _went_to_agent(gate) else None


def resolvers(facts: Facts) -> frozenset[TaskId]:
    """Every task that was added to resolve conflicts."""
    return frozenset(_resolver_id(gate_id) for gate_id, gate in facts.gates.items() if _went_to_agent(gate))


def _went_to_agent(gate: GateFacts) -> bool:
    return gate.opened.kind == "merge" and gate.answer == "approved" and _is_agent(decode_value(gate.output))


def _is_agent(output: object) -> bool:
    return isinstance(output, str) and output.startswith(_AGENT)


def _resolver_id(gate_id: GateId) -> TaskId:
    return TaskId(gate_id.replace(":", "-", 1))


def resolver_for(board: Board, gate: ev.DecisionRequired, output: object) -> TaskDef | None:
    """The task that an answer `agent:NAME` asks for; None where the answer is another one.

    CommandRefusedError where there can be none.
    """
    if not isinstance(output, str) or not _is_agent(output):
        return None
    if not open_conflicts(board.facts):
        raise CommandRefusedError(f"gate {gate.gate_id!r} asks about no conflict that an agent could resolve")
    if gate.inputs.endswith(CUT_SHORT):
        raise CommandRefusedError(
            "the conflicts are too many to be shown whole, to you and to an agent",
            next_step="Choose versions with --use.",
        )
    name, known = output.removeprefix(_AGENT), [one for one in AGENTS if one != "command"]
    if name not in known:
        raise CommandRefusedError(f"the agent is one of {', '.join(known)}, not {name!r}{nearest(name, known)}")
    tasks = [task.definition for task in pending(board, gate.layer)]
    walls = [one.sandbox for one in tasks if one.sandbox]
    told = "\n".join(f"- task:{one.id}: {_purpose(one)}" for one in tasks)
    return task_from_mapping(
        _resolver_id(gate.gate_id),
        {
            "agent": name,
            "prompt": without_references(_RESOLVE.format(tasks=told, conflicts=gate.inputs)),
            "isolation": "worktree",
            # What it writes is read from what they wrote: where one of them is walled in, so is the agent.
            **({"sandbox": walls[0]} if walls else {}),
            "continue_on_error": True,  # it is asked again then, with no more versions than before
            "description": f"resolves the conflicts of {gate.gate_id}",
        },
    )


def _purpose(definition: TaskDef) -> str:
    """What the task is for, as its author says."""
    work = definition.agent or definition.llm
    run = definition.run if isinstance(definition.run, str) else shlex.join(definition.run)
    text = " ".join((definition.description or (work.prompt if work is not None else "") or run).split())
    return text[:_LONGEST_PURPOSE] or "(it does not say)"


def open_conflicts(facts: Facts) -> tuple[ev.MergeConflict, ...]:
    """What somebody has to choose before the newest merge can be decided."""
    if facts.merge is None or facts.merge.tree:
        return ()
    return tuple(conflict for conflict in facts.merge.conflicts if not conflict.settled)


def record_merge(board: Board, given: MergeEnded) -> None:
    """The files were looked at: write the merge down, or ask."""
    tasks = tuple(task.id for task in pending(board, given.layer))
    if tasks != given.tasks or not may_go_on(board, given.layer):
        return  # of results that do not count any more
    if not given.problem:
        board.emit(
            ev.FilesMerged(
                layer=given.layer,
                tasks=given.tasks,
                before=given.before,
                tree=given.tree,
                snapshot=given.snapshot,
                conflicts=given.conflicts,
            )
        )
    if not given.tree:
        board.capture_wanted = None
        board.open_gate(_question(board, given))


def _question(board: Board, given: MergeEnded) -> ev.DecisionRequired:
    facts, conflicts = board.facts, open_conflicts(board.facts)
    paths = [conflict.path for conflict in conflicts]
    _, name = newest_gate(facts, "merge", str(given.layer))
    if given.problem:
        question = (
            f"What the isolated tasks of layer {given.layer + 1} did cannot be merged: {given.problem}. Try again?"
        )
    else:
        listed = ", ".join(paths[:_SHOWN]) + (" …" if len(paths) > _SHOWN else "")
        question = (
            f"Isolated tasks of layer {given.layer + 1} changed the same parts of {listed}. Whose is taken there?"
        )
    return ev.DecisionRequired(
        gate_id=name,
        kind="merge",
        layer=given.layer,
        question=question,
        shown=_digest(board, given.layer),
        inputs=given.text,
        command=_answer(facts.workflow_id, name, conflicts),
    )


def answer_to(facts: Facts, gate: ev.DecisionRequired) -> str:
    """What to type to say yes at an open gate: made anew, since a journal that was imported may say anything.

    Where it asks whether a task ran, that lists the answers to choose from.
    """
    if gate.kind == "merge":
        return _answer(facts.workflow_id, gate.gate_id, open_conflicts(facts))
    choices = gate.choices if gate.kind != "ask" else ()
    return answer_command(facts.workflow_id, gate.gate_id, choices, signed=gate.by == "signed")


def _answer(workflow_id: str, gate_id: str, conflicts: tuple[ev.MergeConflict, ...]) -> str:
    """Whole, so that it can be typed as it is: the last task that is in conflict, for each path."""
    chosen = (shlex.quote(f"{conflict.path}={conflict.sides[-1]}") for conflict in conflicts)
    return "".join([answer_command(workflow_id, gate_id), *(f" --use {choice}" for choice in chosen)])


def _digest(board: Board, layer: int) -> str:
    """Of the results to be merged."""
    unmerged = board.facts.unmerged
    told = "\0".join(f"{task.id}\0{unmerged[task.id].snapshot}" for task in pending(board, layer))
    return blake2b(told.encode(), digest_size=16).hexdigest()


def check_choices(facts: Facts, gate_id: GateId, output: Any) -> None:
    """CommandRefusedError unless the answer chooses, for each path in conflict, a version that there is."""
    conflicts = open_conflicts(facts)
    if not conflicts:
        return
    if not isinstance(output, Mapping):
        raise CommandRefusedError(
            f"an answer to a merge says for each path which version to take: {_FORMS}; "
            f"in conflict: {', '.join(conflict.path for conflict in conflicts[:_SHOWN])}",
            next_step=f"For example: {_answer(facts.workflow_id, gate_id, conflicts)}",
        )
    sides = {conflict.path: conflict.sides for conflict in conflicts}
    for path, text in output.items():
        choice = parse_choice(text)
        if path not in sides:
            raise CommandRefusedError(f"{path!r} is not in conflict; in conflict: {', '.join(list(sides)[:_SHOWN])}")
        if choice is None or (choice.kind != "file" and text not in sides[path]):
            there = ", ".join(repr(side) for side in sides[path])
            raise CommandRefusedError(f"{text!r} is no version of {path!r}; there are {there}, or 'file:PATH'")
    if missing := [path for path in sides if path not in output]:
        raise CommandRefusedError(f"no version was chosen of {', '.join(missing[:_SHOWN])}: {_FORMS}")

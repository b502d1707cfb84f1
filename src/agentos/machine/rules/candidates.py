"""Candidates: who passed, who wins, and the table that says why.

    the task starts                  plan_changed: a task for each candidate, and the judge's behind them
    a candidate ends                 its files are kept beside the worktree; a failure is that of the candidate alone
    all have ended, two passed       the judge is asked; with fewer, or without one, nobody is
    the judge has ended              task_complete of the task, with the winner's output and files: they are merged

Killed anywhere, what ended has ended; the winner is on record before anything of it is merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw

from agentos import typed
from agentos.dag.plan.candidates import JUDGE, child_id, key_of
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.facts.fold import Facts
from agentos.machine.frontier import fan_out_of
from agentos.values import decode_value, encode_value

PASSED = "passed"
NONE_PASSED = "NoCandidatePassed"
CANCELLED = "CandidatesCancelled"
NO_CHOICE = "fewer than two passing candidates"
"""Why a judge is not asked."""
_IN_SHORT = 300


class CandidateRow(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate as the table has it."""

    candidate: str
    task_id: str
    agent: str
    """Or `llm`."""
    model: str
    status: str
    """passed, failed, or how far it is."""
    verify: Literal["passed", "failed", "not run", ""]
    """Empty: there is none."""
    files: int
    """Paths that it changed."""
    added: int
    """Lines."""
    removed: int
    turns: int
    tokens: int
    cost_usd: float
    """As far as it is known."""
    error: str
    winner: bool
    reason: str
    """Of the winner: why it is; in the judge's words, where there was one."""
    execution_time_ms: float = 0.0
    """Of its last attempt."""


class _RecordedTable(msgspec.Struct, frozen=True):
    """What a task with candidates gave, as far as the table goes."""

    candidates: list[CandidateRow]


class Winner(NamedTuple):
    """Who wins, and why."""

    key: str
    reason: str


def contest_of(plan: Plan, task: PlannedTask) -> PlannedTask | None:
    """The task that this one is a candidate or the judge of."""
    parent = fan_out_of(task)
    above = plan.tasks.get(parent) if parent is not None else None
    return above if above is not None and above.definition.candidates else None


def is_judge(plan: Plan, task: PlannedTask) -> bool:
    above = contest_of(plan, task)
    return above is not None and task.id == child_id(above.id, JUDGE)


def is_candidate(plan: Plan, task: PlannedTask) -> bool:
    return contest_of(plan, task) is not None and not is_judge(plan, task)


def contestants(facts: Facts, parent: TaskId) -> list[TaskId]:
    """The tasks of the candidates, in plan order, without the judge's."""
    return [child for child in facts.children.get(parent, ()) if child != child_id(parent, JUDGE)]


def list_passed(facts: Facts, parent: TaskId) -> list[TaskId]:
    return [child for child in contestants(facts, parent) if facts.task(child).status == "complete"]


def needs_no_judge(plan: Plan, facts: Facts, task: PlannedTask) -> bool:
    """Whether this is a judge with nothing to choose from."""
    above = contest_of(plan, task)
    return above is not None and is_judge(plan, task) and len(list_passed(facts, above.id)) < 2


# --- the verdict --------------------------------------------------------------------------------------------------


def read_verdict(output: Any, keys: list[str]) -> Winner | None:
    """Whom the judge names, by what its task gave; None where that is none of those who passed."""
    if not isinstance(output, dict):
        return None
    said = output.get("json")
    if "choice" in output:
        said = {"winner": output["choice"], "reason": output.get("reason") or f"chosen by {output.get('author', '')}"}
    elif "stdout" in output:
        said = _printed_verdict(str(output["stdout"]))
    if not isinstance(said, dict) or str(said.get("winner")) not in keys:
        return None
    return Winner(str(said["winner"]), str(said.get("reason") or ""))


def _printed_verdict(text: str) -> Any:
    """`{"winner": …, "reason": …}`, or the winner in the last line and the reason before it."""
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        said = None
    if isinstance(said, dict):
        return said
    *reason, winner = text.strip().splitlines() or [""]
    return {"winner": winner.strip(), "reason": "\n".join(reason).strip()}


def verdict_failure(plan: Plan, facts: Facts, task: PlannedTask, output: Raw) -> ev.TaskFailure | None:
    """What is wrong with a judge's answer, if anything is."""
    above = contest_of(plan, task)
    if above is None or not is_judge(plan, task):
        return None
    keys = [key_of(above.id, child) for child in list_passed(facts, above.id)]
    if read_verdict(_decode(output), keys) is not None:
        return None
    text = f"the judge names none of those who passed ({', '.join(keys)}): it answers with one of them, and why"
    return ev.TaskFailure(type="JudgeError", text=text)


def choose(facts: Facts, parent: TaskId) -> Winner | None:
    """Who wins, once all have ended; None where nobody does."""
    keys = [key_of(parent, child) for child in list_passed(facts, parent)]
    judged = facts.task(child_id(parent, JUDGE))
    if judged.status == "complete":
        return read_verdict(_decode(judged.output), keys)
    if not keys or judged.error is not None:
        return None
    if len(keys) == 1:
        return Winner(keys[0], "the only one that passed")
    return Winner(keys[0], "the first that passed; there is no judge")


# --- the end ------------------------------------------------------------------------------------------------------


def contest_result(plan: Plan, facts: Facts, parent: PlannedTask) -> ev.TaskComplete | ev.TaskFailure:
    """What follows once all have ended: the winner's result is the task's, or it fails with what went wrong."""
    if cut := [child for child in facts.children[parent.id] if facts.task(child).status == "cancelled"]:
        return ev.TaskFailure(type=CANCELLED, text=f"{', '.join(cut)} cancelled")
    judged = facts.task(child_id(parent.id, JUDGE))
    if judged.error is not None:
        kind = "GateRejected" if judged.error.type == "GateRejected" else "JudgeError"
        return ev.TaskFailure(type=kind, text=f"no candidate was chosen: {judged.error.in_short}")
    choice = choose(facts, parent.id)
    if choice is None:
        return _none_passed(facts, parent.id)
    winner = child_id(parent.id, choice.key)
    given = decode_value(facts.task(winner).output)
    # Times differ from run to run: a result that is otherwise the same is the same.
    table = [_without_time(row) for row in candidate_table(plan, facts, parent)]
    output = {**(given if isinstance(given, dict) else {"output": given}), "candidate": choice.key, "candidates": table}
    return ev.TaskComplete(
        task_id=parent.id,
        layer=parent.layer,
        place=parent.place,
        output=Raw(encode_value(output, around=True)),
        files=facts.candidates.get(winner),
        verified=facts.task(winner).verified,
    )


def _without_time(row: CandidateRow) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(row)
    del shown["execution_time_ms"]
    return shown


def _none_passed(facts: Facts, parent: TaskId) -> ev.TaskFailure:
    rows = [f"no candidate passed, of {len(contestants(facts, parent))}"]
    for child in contestants(facts, parent):
        error = facts.task(child).error
        rows.append(f"{key_of(parent, child)}: {error.in_short if error is not None else facts.task(child).status}")
    return ev.TaskFailure(type=NONE_PASSED, text="\n".join(rows))


# --- the table ----------------------------------------------------------------------------------------------------


def recorded_table(facts: Facts, parent: TaskId) -> list[CandidateRow]:
    """The table that a finished task gave; empty where it had no candidates, or not all of its output was read."""
    if parent not in facts.children or facts.task(parent).status != "complete":
        return []
    try:
        rows = typed.decode(bytes(facts.task(parent).output), _RecordedTable).candidates
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    times = {row.task_id: facts.task(TaskId(row.task_id)).execution_time_ms for row in rows}
    return [msgspec.structs.replace(row, execution_time_ms=times[row.task_id]) for row in rows]


def winner_of(rows: Sequence[CandidateRow]) -> CandidateRow | None:
    return next((row for row in rows if row.winner), None)


def _decode(output: Raw) -> Any:
    """What a task gave; None where only the beginning of it was read."""
    try:
        return decode_value(output)
    except ValueError:
        return None


def candidate_table(plan: Plan, facts: Facts, parent: PlannedTask) -> list[CandidateRow]:
    """Each candidate of the task, as it stands; empty before there are any."""
    if rows := recorded_table(facts, parent.id):
        return rows
    children = contestants(facts, parent.id)
    over = bool(children) and all(facts.task(child).ended for child in facts.children[parent.id])
    choice = choose(facts, parent.id) if over else None
    return [_row(plan, facts, parent.id, child, choice) for child in children]


def describe(rows: Sequence[CandidateRow]) -> str:
    """A line about each, for somebody who is to choose."""
    return "\n".join(map(_row_text, rows))


def _row_text(row: CandidateRow) -> str:
    name = row.candidate if row.candidate == row.agent else f"{row.candidate}, {row.agent}"
    paid = f"${row.cost_usd:.4g}" if row.cost_usd else f"{row.tokens:,} tokens" if row.tokens else ""
    verify = f"verify {row.verify}" if row.verify else ""
    about = (f"{name} {row.model}".strip(), verify, f"files {row.files}", f"lines +{row.added} -{row.removed}")
    return " · ".join(filter(None, (*about, f"turns {row.turns}" if row.turns else "", paid)))


def _row(plan: Plan, facts: Facts, parent: TaskId, child: TaskId, choice: Winner | None) -> CandidateRow:
    was, files = facts.task(child), facts.candidates.get(child)
    spent = facts.spent.get(child, ev.NO_USAGE)
    definition = plan.tasks[child].definition if child in plan.tasks else None
    agent = definition.agent if definition is not None else None
    llm = definition.llm if definition is not None else None
    output = _decode(was.output) if was.status == "complete" else None
    turns = output.get("turns") if isinstance(output, dict) else None
    verify: Literal["passed", "failed", "not run", ""] = ""
    if agent is not None and agent.verify:
        verify = "passed" if was.status == "complete" else "failed" if was.verified is not None else "not run"
    key = key_of(parent, child)
    won = choice is not None and choice.key == key
    return CandidateRow(
        candidate=key,
        task_id=child,
        agent=agent.agent if agent is not None else "llm" if llm is not None else "",
        model=agent.model if agent is not None else llm.model if llm is not None else "",
        status={"complete": PASSED, "failed_safe": "failed"}.get(was.status, was.status),
        verify=verify,
        files=files.paths if files is not None else 0,
        added=files.added if files is not None else 0,
        removed=files.removed if files is not None else 0,
        turns=turns if isinstance(turns, int) else spent.calls,
        tokens=spent.tokens,
        cost_usd=spent.cost_usd,
        error=was.error.in_short[:_IN_SHORT] if was.error is not None else "",
        winner=won,
        reason=choice.reason if won and choice is not None else "",
        execution_time_ms=was.execution_time_ms,
    )

"""How a drive ended, and what to type next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentos import RunResult
from agentos.cli.boundary import OF_STATUS, Exit
from agentos.client.answers import approval_arguments
from agentos.client.runs import LEFT_OUT
from agentos.client.types import events as ev
from agentos.client.views import recorded_table, winner_of
from agentos.exceptions import TryAgainError
from agentos.ids import GateId, short_id
from agentos.render.text import count, local, printable, printable_lines, short
from agentos.render.value_text import (
    candidate_lines,
    check_lines,
    covers_lines,
    evidence_lines,
    raised_lines,
    usage_text,
)

if TYPE_CHECKING:
    from agentos.client.types import Facts
    from agentos.client.views import AttemptEvidence

MOST = 10
"""Failed tasks, or open gates, that a report goes into; it only counts the rest."""
LINES = 12
"""Lines of an error's text that are shown: the newest, which is where the reason stands."""


def _kinds_of(error: type[BaseException]) -> set[str]:
    return {error.__name__}.union(*map(_kinds_of, error.__subclasses__()))


_TRY_AGAIN = _kinds_of(TryAgainError)


def exit_of(facts: Facts) -> Exit:
    """The exit code of a drive that ended with these facts."""
    errors = [facts.task(task_id).error for task_id in facts.failed]
    if facts.status == "failed" and errors and all(error and error.type in _TRY_AGAIN for error in errors):
        return Exit.TRY_AGAIN  # nothing is wrong with the run: what it needs is not to be had now
    return OF_STATUS.get(facts.status, Exit.FAILED)


def report(
    facts: Facts,
    *,
    stopped: bool = False,
    where: str = "",
    asked: Sequence[GateId] = (),
    evidence: Mapping[GateId, AttemptEvidence] = {},
) -> list[str]:
    """Lines for the person who waited: what failed and why, what is kept, what is asked, which command goes on.

    `where` is what each command to type needs besides, to find the run: ` --repo PATH`, or nothing. `asked` are the
    open gates that wait for an answer now; `evidence` is for those that ask whether a task ran.
    """
    lines = [_tally(facts)]
    lines += _contests(facts)
    lines += _failures(facts, where)
    if facts.status != "aborted":
        lines += _questions(facts, asked, where, evidence)
    run = f"{shlex.quote(short_id(facts.workflow_id))}{where}"
    if facts.status in ("failed", "paused", "interrupted", "waiting"):
        done = sum(task.status in ("complete", "failed_safe") for task in facts.tasks.values())
        cut = f", checkpoint of layer {facts.finished_layer + 1}" if facts.cuts else ""
        lines += [f"Kept: {count(done, 'finished task')}{cut}"] if done else []
        lines += _retries(facts)
    spent = facts.spent_in_all
    if spent.input_tokens or spent.output_tokens or spent.cost_usd:
        paid = usage_text(spent, at_least=bool(facts.still_spending))
        lines.append(f"Models were paid {paid}, {count(spent.calls, 'call')}.")
    if left_out := [task.because for task in facts.tasks.values() if task.because.startswith(LEFT_OUT)]:
        told = f"Not selected {left_out[0].removeprefix(LEFT_OUT)}: {count(len(left_out), 'task')}."
        lines.append(f"{told} To run all: agentos resume {run} --all-tasks")
    if facts.status == "complete":
        lines.append(f"What its tasks gave: agentos show {run}")
    elif RunResult(facts).is_rejected:
        lines.append(f"No resume passes a gate that was rejected. Ask anew in a new run: agentos fork {run}")
    elif facts.status == "failed" and exit_of(facts) == Exit.TRY_AGAIN:
        lines.append(f"Nothing is wrong with the run. Go on later with: agentos resume {run}")
    elif facts.status == "failed":
        lines.append(f"Mend what failed, then go on with: agentos resume {run}")
    elif facts.status in ("paused", "interrupted"):
        lines.append(f"{'Paused. ' if stopped else ''}Go on with: agentos resume {run}")
    elif facts.status == "aborted" and facts.cuts:
        lines.append(f"An aborted run is final. Go on in a new one: agentos fork {run}")
    return [printable(line) for line in lines]


def _tally(facts: Facts) -> str:
    counts: Counter[str] = Counter(task.status for task in facts.tasks.values())
    words = {"complete": "complete", "failed": "failed", "failed_safe": "failed as allowed", "skipped": "skipped"}
    words["cancelled"] = "cancelled"
    parts = [f"{counts[status]} {word}" for status, word in words.items() if counts[status]]
    none = "nothing has ended" if any(task.attempts for task in facts.tasks.values()) else "nothing ran"
    return f"{facts.name or 'run'} ({facts.workflow_id}) is {facts.status}: {', '.join(parts) or none}."


def _contests(facts: Facts) -> list[str]:
    """Who won where several worked on a task, and the table of them."""
    lines: list[str] = []
    tables = [(task_id, rows) for task_id in sorted(facts.children) if (rows := recorded_table(facts, task_id))]
    for task_id, rows in tables[:MOST]:
        won = winner_of(rows)
        lines.append(f"  {task_id}: candidate {won.candidate if won else '?'} of {len(rows)} won")
        lines += [f"    {line}" for line in candidate_lines(rows)]
    return lines


def _failures(facts: Facts, where: str) -> list[str]:
    failed = sorted(
        (task.layer, task.place, task_id)
        for task_id, task in facts.tasks.items()
        if task.status == "failed" or (task.status == "cancelled" and facts.status == "failed")
    )
    run = shlex.quote(short_id(facts.workflow_id))
    lines: list[str] = []
    for _, _, task_id in failed[:MOST]:
        task = facts.task(task_id)
        attempt = f" (attempt {task.attempts})" if task.attempts > 1 else ""
        error = task.error or ev.TaskFailure(type="Error", text="it did not say why")
        first, *rest = printable_lines(error.text)
        what = f"{error.type}: {short(first, 500)}" if error.text else error.type
        lines.append(f"  {task_id}{attempt} {task.status}: {what}")
        if len(rest) > LINES:
            lines.append(f"    … {count(len(rest) - LINES, 'line')} more")
        lines += [f"    {short(line, 500)}" for line in rest[-LINES:]]
        lines += [f"    {short(line, 500)}" for line in raised_lines(error, LINES)]
        if task.attempts:
            lines.append(f"    full output: agentos logs {run} {shlex.quote(task_id)}{where}")
    if len(failed) > MOST:
        lines.append(f"  and {len(failed) - MOST} more: agentos show {run}{where}")
    return lines


def _retries(facts: Facts) -> list[str]:
    """Tasks that wait for their next attempt, and until when."""
    waiting = sorted(
        (task.not_before, task_id, task.attempts + 1, task.limit)
        for task_id, task in facts.tasks.items()
        if task.status == "retrying" and task.not_before is not None
    )
    lines = [
        f"{task_id} waits for the end of a limit, until {local(at)}."
        if limit
        else f"Attempt {attempt} of {task_id} begins at {local(at)} at the earliest."
        for at, task_id, attempt, limit in waiting
    ]
    return lines[:MOST] + ([f"and {len(lines) - MOST} more tasks wait for another attempt"] if lines[MOST:] else [])


def _questions(
    facts: Facts, asked: Sequence[GateId], where: str, evidence: Mapping[GateId, AttemptEvidence]
) -> list[str]:
    """Each gate with the exact commands that answer it, from any terminal."""
    lines = []
    for gate_id in asked[:MOST]:
        opened = facts.gates[gate_id].opened
        lines.append(f"  {gate_id} asks: {short(opened.question, 500)}")
        lines += [f"    {line}" for line in covers_lines(opened.covers or None, opened.again)]  # only what there is
        lines += [f"    {line}" for line in check_lines(opened.verified)]
        lines += [f"    {line}" for line in evidence_lines(evidence[gate_id])] if gate_id in evidence else []
        if opened.file:
            lines.append(f"    about the file {short(opened.file, 500)}")
        if opened.kind == "merge":
            lines += [f"    {short(line, 500)}" for line in printable_lines(opened.inputs)[:LINES]]
        subject = f"{shlex.quote(short_id(facts.workflow_id))} {shlex.quote(gate_id)}{where}"
        lines += [f"    agentos approve {subject}{more}" for more in approval_arguments(facts, opened)]
        lines.append(f"    agentos reject {subject} --reason TEXT")
    if len(asked) > MOST:
        lines.append(f"  and {len(asked) - MOST} more: agentos inbox")
    return lines

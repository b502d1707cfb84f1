"""Rounds: a named group of tasks, run again until a condition holds.

The group's tasks are ordinary tasks and make the first round. The `repeat` task stands behind them; while its condition
does not hold it adds another round (`draft@2`, `review@2`, …) to the plan and waits for that one too.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agentos.dag.conditions import evaluate, parse_condition
from agentos.dag.growth import round_tasks
from agentos.dag.plan import Plan, PlannedTask
from agentos.dag.task import Repeat
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.run import events as ev
from agentos.run.board import Board, failed_status, failure_of
from agentos.run.changes import apply_change
from agentos.run.scope import scope_of
from agentos.values import encode_value


def close_round(board: Board, task: PlannedTask, repeat: Repeat) -> None:
    """A round has ended: complete the task, add another round, or give up."""
    try:
        _close(board, task, repeat)
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))


def _close(board: Board, task: PlannedTask, repeat: Repeat) -> None:
    plan = board.plan
    done = rounds_of(plan, repeat)
    scope = scope_of(plan, board.facts, task)
    if evaluate(parse_condition(repeat.until), scope, succeeded=True, failed=False):
        output = msgspec.Raw(encode_value({"rounds": done}))
        board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=output))
    elif done >= repeat.max:
        text = f"after {done} round(s) this does not hold: {repeat.until}"
        board.fail(task, ev.TaskFailure(type="RoundsExhausted", text=text, traceback=""))
    else:
        grown = tuple(round_tasks(plan, task.id, done + 1))
        waiting = replace(task.definition, needs=(*task.definition.needs, *(added.id for added in grown)))
        change = ev.PlanChanged(
            origin="repeat", parent=task.id, added=grown, changed=(waiting,), min_layer=board.next_layer
        )
        apply_change(plan, change)  # what does not fit fails the task, before anything is written
        board.change_plan(change)


def rounds_of(plan: Plan, repeat: Repeat) -> int:
    """How many rounds the plan holds so far."""
    number = 1
    while TaskId(f"{repeat.tasks[0]}@{number + 1}") in plan.tasks:
        number += 1
    return number

"""Rounds: a named group of tasks, run again until a condition holds.

The group's tasks are ordinary tasks and make the first round. The `repeat` task stands behind them; while its condition
does not hold it adds another round (`draft@2`, `review@2`, …) to the plan and waits for that one too.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from agentos.dag.define.task import Repeat
from agentos.dag.language.conditions import evaluate, parse_condition
from agentos.dag.plan.growth import round_tasks
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import AgentosError
from agentos.ids import TaskId
from agentos.machine import events as ev
from agentos.machine.board import Board, failed_status, failure_of
from agentos.machine.rules.scope import scope_of
from agentos.values import encode_value


def close_round(board: Board, task: PlannedTask, repeat: Repeat) -> None:
    """A round has ended: complete the task, add another round, or give up."""
    done = rounds_of(board.plan, repeat)
    try:
        scope = scope_of(board.plan, board.facts, task)
        if evaluate(parse_condition(repeat.until), scope, succeeded=True, failed=False):
            output = msgspec.Raw(encode_value({"rounds": done}, around=True))
            board.emit(ev.TaskComplete(task_id=task.id, layer=task.layer, place=task.place, output=output))
        elif done < repeat.max:
            board.change_plan(_another_round(board, task, done + 1))
        else:
            text = f"after {done} round(s) this does not hold: {repeat.until}"
            exhausted = ev.TaskFailure(type="RoundsExhausted", text=text, traceback="")
            board.fail(task, exhausted, status=failed_status(task))
    except AgentosError as error:
        board.fail(task, failure_of(error), status=failed_status(task))


def _another_round(board: Board, task: PlannedTask, number: int) -> ev.PlanChanged:
    grown = tuple(round_tasks(board.plan, task.id, number))
    waiting = replace(task.definition, needs=(*task.definition.needs, *(added.id for added in grown)))
    return ev.PlanChanged(
        origin="repeat",
        parent=task.id,
        added=grown,
        changed=(waiting,),
        min_layer=task.layer + 1,
        under=task.place,
    )


def rounds_of(plan: Plan, repeat: Repeat) -> int:
    """How many rounds the plan holds so far."""
    number = 1
    while TaskId(f"{repeat.tasks[0]}@{number + 1}") in plan.tasks:
        number += 1
    return number

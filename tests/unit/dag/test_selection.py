"""Which tasks are selected, and which selections cannot run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentos.dag.plan.plan import Plan, is_left_out
from agentos.dag.plan.selection import EVERY_TASK, Selection, refuse_without_results
from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId
from tests.unit.dag.support import plan_of

DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "alone": []}


def ids(*names: str) -> tuple[TaskId, ...]:
    return tuple(map(TaskId, names))


def selected(plan: Plan, selection: Selection) -> str:
    """The ids of the tasks that run, in order."""
    found = replace(plan, selection=selection).selected_tasks()
    return " ".join(task.id for task in plan.tasks.values() if not is_left_out(task, found))


@pytest.mark.parametrize(
    ("selection", "runs"),
    [
        (EVERY_TASK, "a b c d alone"),
        (Selection(until=ids("b")), "a b"),
        (Selection(until=ids("b", "alone")), "a b alone"),
        (Selection(start=ids("b")), "b d"),
        (Selection(only=ids("b", "c")), "b c"),
        (Selection(start=ids("b"), until=ids("d")), "b d"),
        (Selection(start=ids("alone"), until=ids("d")), ""),
    ],
)
def test_what_runs(selection: Selection, runs: str) -> None:
    assert selected(plan_of(DIAMOND), selection).split() == sorted(runs.split(), key=list(DIAMOND).index)


@given(st.sampled_from(sorted(DIAMOND)))
def test_what_runs_until_a_task_never_lacks_a_result(name: str) -> None:
    plan = replace(plan_of(DIAMOND), selection=Selection(until=ids(name)))
    found = plan.selected_tasks()
    assert found is not None
    needs = {task.id: task.definition.needs for task in plan.tasks.values()}
    refuse_without_results(plan.selection, found, needs, lambda need: False)


def test_a_task_without_what_it_needs_is_refused_with_the_command() -> None:
    needs = {TaskId(name): ids(*needed) for name, needed in DIAMOND.items()}
    selection = Selection(only=ids("d"))
    with pytest.raises(RunRefusedError, match="d needs c, not selected") as refused:
        refuse_without_results(selection, frozenset(ids("d")), needs, lambda need: need == "b")
    assert "`--until d`" in refused.value.next_step


def test_a_selection_says_itself_as_it_is_typed() -> None:
    assert str(Selection(until=ids("a", "b"), start=ids("c"))) == "--until a --until b --from c"
    assert not EVERY_TASK
    assert [Selection(until=ids("a")).repeats, Selection(only=ids("a")).repeats] == [False, True]

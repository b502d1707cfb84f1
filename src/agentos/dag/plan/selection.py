"""Which tasks of a plan are to run, where somebody wants only some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from agentos.exceptions import RunRefusedError
from agentos.ids import TaskId

LEFT_OUT = "the selection "
"""What `because` begins with where a task was skipped since it was not selected."""


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tasks by id: these alone, these with all that they need, these with all that needs them. Empty: every task."""

    only: tuple[TaskId, ...] = ()
    until: tuple[TaskId, ...] = ()
    start: tuple[TaskId, ...] = ()
    """What `--from` names. With `until`: what lies between."""

    def __bool__(self) -> bool:
        return bool(self.names)

    def __str__(self) -> str:
        words = [("--only", self.only), ("--until", self.until), ("--from", self.start)]
        return " ".join(f"{word} {name}" for word, names in words for name in names)

    @property
    def names(self) -> tuple[TaskId, ...]:
        return (*self.only, *self.until, *self.start)

    @property
    def repeats(self) -> bool:
        """Whether tasks that have finished run again for it: those that it names, and what comes after them."""
        return bool(self.only or self.start)

    @property
    def because(self) -> str:
        """Why a task that it leaves out is skipped."""
        return f"{LEFT_OUT}({self})"


EVERY_TASK = Selection()
_Neighbours = Callable[[TaskId], Iterable[TaskId]]


def select_tasks(
    selection: Selection, needs: Mapping[TaskId, Iterable[TaskId]], dependants: Mapping[TaskId, Iterable[TaskId]]
) -> frozenset[TaskId] | None:
    """The tasks selected; None: all. What grows out of a task (items, rounds) goes with it, whatever this says."""
    if not selection:
        return None
    if selection.only:
        return frozenset(selection.only)
    before = _reach(selection.until, lambda name: needs.get(name, ()))
    after = _reach(selection.start, lambda name: dependants.get(name, ()))
    if selection.until and selection.start:
        return before & after
    return before | after


def _reach(names: Iterable[TaskId], neighbours: _Neighbours) -> frozenset[TaskId]:
    found, ahead = set(names), list(names)
    while ahead:
        new = [name for name in neighbours(ahead.pop()) if name not in found]
        found.update(new)
        ahead += new
    return frozenset(found)


def refuse_without_results(
    selection: Selection,
    selected: frozenset[TaskId],
    needs: Mapping[TaskId, Iterable[TaskId]],
    is_there: Callable[[TaskId], bool],
) -> None:
    """RunRefusedError where nothing is selected, or a selected task needs one that is not and that gave no result."""
    if not selected:
        raise RunRefusedError(f"no task lies between: {selection}", next_step="Nothing was run.")
    for task_id in sorted(selected):
        lacking = [need for need in needs.get(task_id, ()) if need not in selected and not is_there(need)]
        if lacking:
            raise RunRefusedError(
                f"{task_id} needs {', '.join(lacking)}, not selected and without a result in this run",
                next_step=f"Nothing was run. `--until {task_id}` runs what it needs, too; with `--id` of a run in "
                "which that has finished, its results are used.",
            )

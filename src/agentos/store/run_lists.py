"""What lists show of a run beside its row, kept in tables of its own: labels, open questions, what ended runs left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from agentos.exceptions import AgentosError
from agentos.ids import WorkflowId
from agentos.machine.events import DecisionRequired
from agentos.store import codec
from agentos.store.port import ENDED, INCOMPLETE, UNDER_WAY, Progress, RunQuestions, RunRecord, RunStatus

LISTS_SINCE = 4
"""The schema that brought what lists show; one that is only looked at may be older."""


def has_fewer_under_way(statuses: Collection[RunStatus]) -> bool:
    """Whether runs in these statuses are few, however many have ended, and labels are best looked for among them."""
    return bool(statuses) and set(statuses) <= set(UNDER_WAY)


class Listed(NamedTuple):
    """What lists show of a run beside its row, as far as it is known, or is to be written."""

    asked: tuple[int, ...] | None = None
    left: tuple[str, ...] | None = None

    def news(self, progress: Progress) -> Listed:
        """What is to be written that is not there yet."""
        left = None
        if progress.status in ENDED:
            left = INCOMPLETE if progress.left is None else progress.left
        return Listed(progress.asked if progress.asked != self.asked else None, left if left != self.left else None)

    def merge(self, news: Listed) -> Listed:
        return Listed(self.asked if news.asked is None else news.asked, self.left if news.left is None else news.left)


UNLISTED = Listed()
"""Nothing is known, or nothing is to be written."""
UNWRITTEN = Listed((), ())
"""Of a run that was just made."""


def questions_from(
    rows: Iterable[Sequence[Any]], width: int, record_from: Callable[[Sequence[Any]], RunRecord]
) -> list[RunQuestions]:
    """The rows of `open_questions`, whose first columns, so many, are those of `find_runs`."""
    found: list[RunQuestions] = []
    for _, some in groupby(rows, key=lambda row: (row[0], row[width - 2 : width])):
        theirs = list(some)
        run = record_from(theirs[0][:width])
        found.append(RunQuestions(run=run, asked=_open_questions(run.workflow_id, [row[width:] for row in theirs])))
    return found


def _open_questions(workflow_id: WorkflowId, rows: Sequence[Sequence[Any]]) -> tuple[DecisionRequired, ...] | None:
    asked: list[DecisionRequired] = []
    for seq, *columns, before in rows:
        if seq == 0 or columns[0] is None:
            return None
        previous = codec.first_digest(workflow_id) if seq == 1 else before
        row: Any = (seq, *columns)
        try:
            [event], _ = codec.decode_rows(
                workflow_id, [row], after=seq - 1, previous=previous or b"", blobs=lambda _: None
            )
        except AgentosError:  # whoever reads the journal tells what is wrong with it
            return None
        if not isinstance(event, DecisionRequired):
            return None
        asked.append(event)
    return tuple(asked)

"""Runs that were read already, and grow by what is new: a page that is looked at again reads only that."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from agentos.client.places import FoundRun, RunRecord
from agentos.client.views import StoredRun, read_run

MOST_RUNS = 8


class Journals:
    """The journals of the runs that were looked at last. Any thread may ask."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], StoredRun] = OrderedDict()
        self._past: tuple[StoredRun, int, StoredRun] | None = None
        self._lock = Lock()

    def read(self, run: FoundRun, at: int | None = None) -> StoredRun:
        """The run as it stands, or as it stood at an event; outputs of more than a megabyte only begin."""
        key = (run.place.database, run.record.workflow_id)
        with self._lock:
            known = self._known.get(key)
        journal = read_run(run, whole=False, known=known)
        with self._lock:
            self._known[key] = journal
            self._known.move_to_end(key)
            while len(self._known) > MOST_RUNS:
                self._known.popitem(last=False)
        if at is None or at >= len(journal.events):
            return journal
        past = self._past
        if past is not None and past[1] == at and past[0].events[:1] == journal.events[:1]:
            return past[2]
        then = read_run(run, whole=False, known=journal, at=max(1, at))
        self._past = (journal, at, then)
        return then


def digest(record: RunRecord) -> str:
    """Changes whenever the run would look different; a lease that is renewed changes nothing."""
    return f"{record.sequence}.{record.status}.{int(record.holder is not None)}"

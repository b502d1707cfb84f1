"""Ids of traces and spans: digests of what they are about, so that every process comes to the same ones."""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b

from agentos.ids import EPOCH, WorkflowId
from agentos.machine.facts.facts import Facts

TRACEPARENT = "TRACEPARENT"
"""The variable in which W3C trace context is handed on to processes."""
_PERSON = b"agentos-trace"
_MICROSECOND = timedelta(microseconds=1)


class TraceIds:
    """The ids of one run. When it began goes in: a run that was deleted may have had the same name."""

    def __init__(self, workflow_id: WorkflowId | str, began_at: datetime) -> None:
        self._run = f"{workflow_id}\0{(began_at - EPOCH) // _MICROSECOND}"

    def run(self, seq: int = 1) -> tuple[str, str]:
        """Trace and span of the run, from the event that began it; or began it anew, after it had ended."""
        return self._digest(16, "run", seq), self.span("run", seq)

    def drive(self, drive: int) -> tuple[str, str]:
        """The trace of a drive, and its root."""
        return self._digest(16, "drive", drive), self.span("drive", drive)

    def attempt(self, drive: int, task_id: str, attempt: int, seq: int) -> tuple[str, str]:
        """Trace and span of an attempt. `seq` is that of its start: numbers come again after a rollback."""
        return self.drive(drive)[0], self.span("attempt", drive, task_id, attempt, seq)

    def span(self, *about: str | int) -> str:
        return self._digest(8, "span", *about)

    def _digest(self, size: int, *about: str | int) -> str:
        text = "\0".join((self._run, *map(str, about)))
        return blake2b(text.encode(errors="surrogatepass"), digest_size=size, person=_PERSON).hexdigest()


def trace_ids(facts: Facts) -> TraceIds:
    """Those of the run that is known so far."""
    return TraceIds(facts.workflow_id, facts.began_at or EPOCH)


def traceparent(trace_id: str, span_id: str) -> str:
    """As W3C trace context has it. Sampled: what hangs below may be wanted, whoever decides about that."""
    return f"00-{trace_id}-{span_id}-01"

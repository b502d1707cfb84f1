"""From what an attempt did to its AttemptResult: values in stored form, or why there are none."""

from __future__ import annotations

import inspect
from time import perf_counter

from msgspec import Raw
from msgspec.structs import replace

from agentos.exceptions import ValueEncodingError
from agentos.machine.events import AgentEnd, TaskFailure, Verification
from agentos.machine.inputs import AttemptResult, LimitReached
from agentos.tasks.context import ContextAdditions
from agentos.tasks.failures import failure_of, plain_failure
from agentos.values import decode_value, encode_value


def milliseconds_since(began: float) -> float:
    """Time since a `perf_counter` reading, to the microsecond: more digits would only be stored, not known."""
    return round((perf_counter() - began) * 1000, 3)


class AttemptFailed(Exception):  # noqa: N818 (says how an attempt ended; never leaves this folder)
    """Carries the end of an unsuccessful attempt up to whoever builds its AttemptResult."""

    def __init__(
        self,
        failure: TaskFailure,
        *,
        retryable: bool = True,
        put_off: bool = False,
        paused: bool = False,
        cancelled: bool = False,
        cut_off: bool = False,
        agent: AgentEnd = "",
        limit: LimitReached | None = None,
        warnings: tuple[str, ...] = (),
        verified: Verification | None = None,
    ) -> None:
        super().__init__(failure.text)
        self.failure = failure
        self.retryable = retryable
        self.result = AttemptResult(
            error=failure,
            retryable=retryable,
            put_off=put_off,
            paused=paused,
            cancelled=cancelled,
            cut_off=cut_off,
            agent=agent,
            limit=limit,
            warnings=warnings,
            verified=verified,
        )


class AttemptSuspended(Exception):  # noqa: N818 (as above)
    """Carries up that an attempt has ended because its function sleeps or waits, and for which steps."""

    def __init__(self, waits: tuple[int, ...]) -> None:
        super().__init__("the task is suspended")
        self.waits = waits


def encode_result(value: object) -> bytes:
    """The stored form of a result; AttemptFailed, which no retry helps, where it has none."""
    try:
        return encode_value(value)
    except ValueEncodingError as error:
        why = error
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            why = ValueEncodingError("$", "the function is a generator; return a list of what it yields")
        raise AttemptFailed(plain_failure(why), retryable=False) from None
    except Exception as error:  # properties and models run their own code here
        raise AttemptFailed(failure_of(error), retryable=False) from None


def success_outcome(
    output: bytes | Raw, left: ContextAdditions, began: float, warnings: tuple[str, ...] = ()
) -> AttemptResult:
    return AttemptResult(
        output=Raw(output),
        messages=left.messages,
        context=left.context,
        warnings=warnings,
        injected=tuple((id, decode_value(mapping)) for id, mapping in left.injected),
        execution_time_ms=milliseconds_since(began),
    )


def failure_outcome(failed: AttemptFailed, began: float) -> AttemptResult:
    return replace(failed.result, execution_time_ms=milliseconds_since(began))

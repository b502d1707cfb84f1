"""What a task's function gets as `ctx`: who it is, and a way to leave messages, values and further tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.events import NOTHING
from agentos.tasks.failures import limit_text
from agentos.values import encode_value

if TYPE_CHECKING:
    from agentos.tasks.python.steps import Steps

MAX_PROGRESS = 4_000
MAX_SLEEP = 1_000 * 366 * 86_400.0


class ContextAdditions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an attempt left behind beside its result, in stored form."""

    messages: Raw = NOTHING
    context: Raw = NOTHING
    injected: tuple[tuple[str, Raw], ...] = ()


class GateAnswer(NamedTuple):
    """What somebody answered to `ctx.wait_for`."""

    approved: bool
    choice: str = ""
    reason: str = ""
    author: str = ""


class Context:
    """The attempt's context. Safe to use from any thread; durable together with the task's result, or not at all.

    Values are written down at the call: changing an object afterwards changes nothing, and one that has no stored
    form raises ValueEncodingError here. Once the attempt has ended (or was given up because of its timeout) every call
    raises AttemptError, so that a function which reports progress stops soon after it was abandoned.
    """

    __slots__ = (
        "_ended",
        "_injected",
        "_lock",
        "_messages",
        "_show",
        "_steps",
        "_values",
        "attempt",
        "idempotency_key",
        "root",
        "task_id",
        "workflow_id",
    )

    def __init__(
        self,
        *,
        workflow_id: WorkflowId,
        task_id: TaskId,
        attempt: int,
        idempotency_key: str,
        root: Path,
        show: Callable[[str], None],
        steps: Steps | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self.task_id = task_id
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        """The same over retries and crashes; new after a rollback or fork."""
        self.root = root
        """Of the worktree that the attempt works on, wherever the driver was started."""
        self._show = show
        self._steps = steps
        self._lock = Lock()
        self._ended = ""
        self._messages: list[bytes] = []
        self._values: dict[str, bytes] = {}
        self._injected: list[tuple[str, Raw]] = []

    def message(self, role: str, content: Any) -> None:
        """Add a message to `state.messages`."""
        _need_text("role", role)
        data = encode_value({"role": role, "content": content})
        with self._lock:
            self._refuse_if_ended("message")
            self._messages.append(data)

    def set(self, key: str, value: Any) -> None:
        """Set a value in `state.context`; the last one set for a key counts."""
        _need_text("key", key)
        if encode_value({key: 0}) != b"{" + encode_value(key) + b":0}":
            # Such a key would change the stored form of the whole context, which SQL merges key by key.
            raise ValueError(f"ctx.set: {key!r} cannot be a key of the context")
        data = encode_value(value)
        with self._lock:
            self._refuse_if_ended("set")
            self._values[key] = data

    def progress(self, what: str | float, text: str = "", *, of: float | None = None) -> None:
        """Show how far the task is, live: `progress("reading")`, `progress(0.4)`, `progress(3, of=10)`. Not stored."""
        share = what if isinstance(what, str) else f"{what:g}/{of:g}" if of is not None else f"{what:.0%}"
        line = limit_text(f"{share} {text}".rstrip(), MAX_PROGRESS)
        with self._lock:
            self._refuse_if_ended("progress")
        self._show(line)

    def step(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Coroutine[Any, Any, Any]:
        """Call a function once: `await ctx.step(charge, order)`. What it gives is durable before this returns it.

        An attempt that goes on after a kill, or tries again after a failure, takes the results of the steps before
        over, by their order and names, and calls only those that are left. What runs between steps runs again. For
        async tasks; the function may be async, or not (then it runs in a thread).
        """
        if not callable(function):
            if isinstance(function, Coroutine):  # or Python tells, too, that nobody awaited it
                function.close()
            raise TypeError(f"ctx.step takes a function and its arguments, as ctx.step(f, x), not {function!r:.100}")
        steps = self._steps_for("step")
        number = steps.take_number()
        return steps.remember(number, "step", steps.perform(number, function, args, named))

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Sleep durably: `await ctx.sleep(86_400)`. When it is over is written down at the first call.

        While it sleeps the task has no attempt under way and takes no slot: the function is cancelled here, and
        called again when the time has come. After a kill it sleeps only what is left.
        """
        given: object = seconds
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise TypeError(f"ctx.sleep takes seconds, as a number, not {seconds!r}")
        if not 0 <= seconds < MAX_SLEEP:
            raise ValueError(f"ctx.sleep takes seconds, from 0 to a thousand years, not {seconds!r}")
        steps = self._steps_for("sleep")
        number = steps.take_number()
        return steps.remember(number, "sleep", steps.sleep(number, seconds))

    def wait_for(
        self, question: str, *, choices: Sequence[str] = (), timeout_s: float | None = None
    ) -> Coroutine[Any, Any, GateAnswer]:
        """Ask a person, durably: `answer = await ctx.wait_for("Ship it?")`, and go on once somebody has approved.

        A gate opens, as any other (`agentos approve`, `agentos inbox`); while nobody has answered, the task has no
        attempt under way. A no raises GateRejected, which fails the task unless the function catches it; so does a
        question that nobody has answered within `timeout_s`.
        """
        _need_text("question", question)
        if isinstance(choices, str):  # would be its letters
            raise TypeError(f"choices is a list of words, not {choices!r}")
        for choice in choices:
            _need_text("choice", choice)
        steps = self._steps_for("wait_for")
        number = steps.take_number()
        return steps.remember(number, "wait_for", steps.wait_for(number, question, tuple(choices), timeout_s))

    def _steps_for(self, verb: str) -> Steps:
        with self._lock:
            self._refuse_if_ended(verb)
        if self._steps is None:
            raise AttemptError(
                f"ctx.{verb} is refused: the function of {self.task_id!r} is not async",
                next_step="Define it with `async def`.",
            )
        return self._steps

    def inject(self, id: str, **mapping: Any) -> None:
        """Ask for another task, in the mapping form of a YAML workflow; it becomes part of the run with this result.

        `ctx.inject("notify", python="mypkg.mail:send", needs=["build"])`; keys that are Python keywords go in as
        `**{"if": "success()"}`. What the mapping says is checked when this task completes.
        """
        _need_text("id", id)
        data = Raw(encode_value(mapping))
        with self._lock:
            self._refuse_if_ended("inject")
            self._injected.append((id, data))

    def _refuse_if_ended(self, verb: str) -> None:
        if self._ended:
            raise AttemptError(
                f"ctx.{verb} is refused: attempt {self.attempt} of {self.task_id!r} {self._ended}",
                next_step="What is done from here on counts for nothing; let the function return.",
            )

    def close(self, why: str) -> ContextAdditions:
        """Take what was left behind and refuse everything from now on."""
        with self._lock:
            self._ended = self._ended or why
            messages, context = NOTHING, NOTHING
            if self._messages:
                messages = Raw(b"[" + b",".join(self._messages) + b"]")
            if self._values:
                pairs = (encode_value(key) + b":" + data for key, data in self._values.items())
                context = Raw(b"{" + b",".join(pairs) + b"}")
            return ContextAdditions(messages=messages, context=context, injected=tuple(self._injected))


def _need_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{name} must be a text that is not empty, not {value!r}")

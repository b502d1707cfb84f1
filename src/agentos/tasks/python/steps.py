"""Durable steps inside an async function: each is called once, whatever becomes of the attempt around it.

A function that sleeps or waits for an answer is suspended as soon as none of its steps is under way: it is cancelled,
its attempt ends, and another attempt goes on once what it waits for has come.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, NoReturn, TypeVar

from agentos.dag.plan.checks import changes_files
from agentos.exceptions import AttemptError, GateRejected, StepsChangedError
from agentos.machine.facts.facts import StepFacts
from agentos.machine.facts.task_reducers import SLEEP, WAIT
from agentos.tasks.attempt import AttemptSpec, StepHost
from agentos.tasks.context import GateAnswer
from agentos.tasks.python.functions import give_back
from agentos.tasks.python.threads import DaemonThreads
from agentos.values import decode_value, encode_value

T = TypeVar("T")


class Steps:
    """The steps of one attempt. Those that earlier attempts made with the same inputs are not made again."""

    def __init__(
        self, spec: AttemptSpec, host: StepHost, threads: DaemonThreads, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._spec, self._host, self._threads, self._loop = spec, host, threads, loop
        self._asked = 0
        self._not_begun: dict[int, tuple[str, Coroutine[Any, Any, Any]]] = {}
        self._at_work = 0
        self._without_result: dict[int, str] = {}
        self._waits: dict[int, asyncio.Future[NoReturn]] = {}
        self._scope: asyncio.Timeout | None = None
        self.suspended: tuple[int, ...] = ()
        """The steps that the function waits for, once it is to end here and to go on in another attempt."""

    @contextmanager
    def suspend_with(self, scope: asyncio.Timeout) -> Iterator[None]:
        """Around the call of the function: letting this scope expire suspends it."""
        self._scope = scope
        try:
            yield
        finally:
            self._scope = None

    def take_number(self) -> int:
        """At the call, so that the order of the calls counts and not who was waited for first."""
        self._asked += 1
        return self._asked - 1

    def remember(self, number: int, verb: str, asked: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The same; should nobody await it, `refuse_forgotten` tells."""
        self._not_begun[number] = verb, asked
        return asked

    def refuse_forgotten(self) -> None:
        """AttemptError where the function has returned and a step, sleep or question of it was never begun.

        Whoever forgets an `await` must not be told that a payment was made, or a person asked.
        """
        for _, asked in self._not_begun.values():
            asked.close()
        for verb, _ in self._not_begun.values():
            raise AttemptError(
                f"ctx.{verb} was called and not awaited, so that nothing came of it",
                next_step=f"Write `await ctx.{verb}(…)`, or give it to asyncio.gather and await that.",
            )

    async def perform(self, number: int, function: Callable[..., Any], args: Any, named: Any) -> Any:
        """What the step gave, or gives now: in either case what its stored form says."""
        self._not_begun.pop(number, None)
        name = _name_of(function)
        known = self._find_known(number, name)
        if known is not None:
            return give_back(function, decode_value(known.output))
        with self._working():
            if self._must_ask_first:
                await self._host.begin_step(number, name, self._inputs)
            try:
                output = encode_value(await self._call(function, args, named))
            except BaseException:
                self._without_result[number] = name
                raise
            await self._host.record_step(number, name, self._inputs, output)
        return give_back(function, decode_value(output))

    async def sleep(self, number: int, seconds: float) -> None:
        """Returns once the seconds are over that began when this sleep was first asked for."""
        self._not_begun.pop(number, None)
        if self._find_known(number, SLEEP) is None:
            self._refuse_to_repeat("sleep")
            with self._working():
                await self._host.begin_sleep(number, self._inputs, seconds)
            await self._suspend(number)

    async def wait_for(
        self, number: int, question: str, choices: tuple[str, ...], timeout_s: float | None
    ) -> GateAnswer:
        """The answer to the question. GateRejected where it is no."""
        self._not_begun.pop(number, None)
        known = self._find_known(number, WAIT)
        if known is None:
            self._refuse_to_repeat("wait_for")
            with self._working():
                await self._host.ask(number, self._inputs, question, choices, timeout_s)
            await self._suspend(number)
        answer = GateAnswer(**decode_value(known.output))
        if not answer.approved:
            raise GateRejected(f"rejected by {answer.author}" + (f": {answer.reason}" if answer.reason else ""))
        return answer

    # --- suspending -----------------------------------------------------------------------------------------------

    @contextmanager
    def _working(self) -> Iterator[None]:
        if self.suspended:
            raise asyncio.CancelledError("the task is suspended")  # it swallowed the first one
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._suspend_soon()

    async def _suspend(self, number: int) -> NoReturn:
        self._waits[number] = self._loop.create_future()
        self._suspend_soon()
        await self._waits[number]
        raise AssertionError("nothing ends this wait but its cancellation")

    def _suspend_soon(self) -> None:
        # In the next turn: steps that are asked for side by side begin in this one.
        if self._waits and not self._at_work:
            self._loop.call_soon(self._suspend_if_idle)

    def _suspend_if_idle(self) -> None:
        # A wait that the function itself has cancelled holds it up no more.
        waits = sorted(number for number, wait in self._waits.items() if not wait.done())
        if waits and self._scope is not None and not self._at_work and not self.suspended:
            self.suspended = tuple(waits)
            self._scope.reschedule(self._loop.time())

    # --- what is known --------------------------------------------------------------------------------------------

    def _find_known(self, number: int, name: str) -> StepFacts | None:
        self._refuse_misplaced()
        known = self._known.get(number)
        if known is not None and known.name != name:
            raise StepsChangedError(
                f"step {number + 1} was {known.name!r} in an earlier attempt, and is {name!r} now",
                next_step=f"`agentos resume {self._spec.workflow_id} --rerun {self._spec.task_id}` begins without "
                "the steps that were made.",
            )
        return known

    @cached_property
    def _inputs(self) -> str:
        # Of nothing else: a run that is imported under another id, or went back behind other steps, keeps these.
        return blake2b(encode_value(dict(self._spec.arguments), around=True), digest_size=8).hexdigest()

    @cached_property
    def _known(self) -> dict[int, StepFacts]:
        return {step.number: step for step in self._spec.steps if step.inputs == self._inputs}

    @property
    def _may_not_repeat(self) -> bool:
        return self._spec.definition.external and self._spec.definition.idempotent == "no"

    @property
    def _must_ask_first(self) -> bool:
        """Whether the driver has to know before a step begins: it may not be repeated unasked, or changes files."""
        return self._may_not_repeat or changes_files(self._spec.definition)

    def _refuse_to_repeat(self, verb: str) -> None:
        # The attempt that goes on after the wait would make these again: nothing of them is on record.
        if self._without_result and self._may_not_repeat:
            number, name = next(iter(self._without_result.items()))
            raise AttemptError(
                f"ctx.{verb} is refused: step {number + 1}, {name!r}, ended without a result, and would be made again "
                "after it, though its effect may not be repeated unasked",
                next_step="Let the step's function catch the error and return what became of it, or say that the task "
                "is idempotent.",
            )

    def _refuse_misplaced(self) -> None:
        if self._spec.definition.isolation == "worktree":
            raise AttemptError(
                f"ctx.step is refused: the worktree of {self._spec.task_id!r} goes with its attempt",
                next_step="Take `isolation: worktree` away, or make tasks of its parts.",
            )
        if asyncio.get_running_loop() is not self._loop:
            raise AttemptError("ctx.step is awaited in another event loop", next_step="Make the task's function async.")

    async def _call(self, function: Callable[..., Any], args: Any, named: Any) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(*args, **named)
        call = self._threads.start(partial(function, *args, **named))
        try:
            value = await call.answer
        except asyncio.CancelledError:
            if not call.ended.done():
                self._host.report_abandoned(call.ended)  # a thread cannot be stopped
            raise
        return await value if inspect.isawaitable(value) else value


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))

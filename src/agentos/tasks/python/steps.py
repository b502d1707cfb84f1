"""Durable steps inside an async function: each is called once, whatever becomes of the attempt around it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

from agentos.crashpoints import reach
from agentos.dag.plan.checks import changes_files
from agentos.exceptions import AttemptError, StepsChangedError
from agentos.machine.facts.facts import StepFacts
from agentos.tasks.attempt import AttemptHost, AttemptSpec
from agentos.tasks.python.functions import give_back
from agentos.tasks.python.threads import DaemonThreads
from agentos.values import decode_value, encode_value


class Steps:
    """The steps of one attempt. Those that earlier attempts made with the same inputs are not made again."""

    def __init__(self, spec: AttemptSpec, host: AttemptHost, threads: DaemonThreads) -> None:
        self._spec, self._host, self._threads = spec, host, threads
        self._loop = asyncio.get_running_loop()
        self._asked = 0

    def take_number(self) -> int:
        """At the call, so that the order of the calls counts and not who was waited for first."""
        self._asked += 1
        return self._asked - 1

    async def perform(self, number: int, function: Callable[..., Any], args: Any, named: Any) -> Any:
        """What the step gave, or gives now: in either case what its stored form says."""
        self._refuse_misplaced()
        name = _name_of(function)
        known = self._known.get(number)
        if known is not None:
            if known.name != name:
                raise StepsChangedError(
                    f"step {number + 1} was {known.name!r} in an earlier attempt, and is {name!r} now",
                    next_step=f"`agentos resume {self._spec.workflow_id} --rerun {self._spec.task_id}` begins without "
                    "the steps that were made.",
                )
            return give_back(function, decode_value(known.output))
        output = encode_value(await self._call(function, args, named))
        reach("step.before")
        await self._host.record_step(number, name, self._inputs, output)
        reach("step.after")
        return give_back(function, decode_value(output))

    @cached_property
    def _inputs(self) -> str:
        given = encode_value(dict(self._spec.arguments), around=True)
        return blake2b(given, digest_size=8, key=self._spec.idempotency_key.encode()).hexdigest()

    @cached_property
    def _known(self) -> dict[int, StepFacts]:
        return {step.number: step for step in self._spec.steps if step.inputs == self._inputs}

    def _refuse_misplaced(self) -> None:
        if changes_files(self._spec.definition):
            raise AttemptError(
                f"ctx.step is refused: {self._spec.task_id!r} changes files, which a step cannot put back",
                next_step="Make tasks of its parts, or say `effects: none` if it changes no files.",
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

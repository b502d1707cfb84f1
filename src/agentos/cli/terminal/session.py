"""One drive in this terminal: show it, ask at its gates, stop it in order, say how it ended.

`run`, `resume`, `fork` and `approve` all go through here; they differ in what they prepare. So do those of Python with
`show=True`, which load this module by its name.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Literal, TextIO, cast

import click
import msgspec

from agentos.cli.boundary import Exit, exit_of_signal
from agentos.cli.output import say
from agentos.cli.terminal.feed import Amount, Feed, JsonLines, PlainLines, View
from agentos.cli.terminal.gate_prompt import GatePrompt, is_interactive
from agentos.cli.terminal.report import exit_of, report
from agentos.client.answers import evidence_of, gates_asked
from agentos.client.places import repo_argument
from agentos.client.process import PrintRouter, Shield, StopSignals, shield_output, unshield
from agentos.client.runs import LEFT_OUT, NO_DIFFERENCE, Driven, Previewed, drive, in_thread
from agentos.client.views import RunModel, usual_ms
from agentos.client.worktree import Client
from agentos.exceptions import AgentosError, FilesChangedError, RunRefusedError
from agentos.ids import short_id
from agentos.render.comparison_text import comparison_lines
from agentos.render.event_text import kept_in_short
from agentos.render.text import printable, printable_lines

if TYPE_CHECKING:
    from agentos.client.types import (
        Drive,
        DriveOptions,
        EventStream,
        Facts,
        FilesChoice,
        Finished,
        GatePolicy,
        Place,
        Ready,
    )

Show = Literal["auto", "quiet", "verbose", "json"]
Gates = Literal["ask", "stop", "wait", "reject"]
"""`ask` asks whoever sits at the terminal, and is `stop` where nobody does."""

HINT = "Ctrl-C stops in order; twice, at once"


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a command shows a drive and treats its gates."""

    show: Show = "auto"
    gates: Gates = "ask"
    waits: bool = False
    """For the end of another run that changes files here."""
    compares: bool = True
    """Says where the workflow differs from the plan last accepted. False: that was said."""

    @property
    def asks(self) -> bool:
        return self.gates == "ask" and self.show != "json" and is_interactive()

    @property
    def policy(self) -> GatePolicy:
        """What the engine does when only gates are left."""
        if self.gates == "ask":
            return "wait" if self.asks else "stop"
        return self.gates


def drive_here(prepare: Callable[[], Ready | Finished], place: Place, manner: Manner) -> int:
    """Prepare and drive a run to the end of this drive, in this terminal; the exit code."""
    with shield_output() as shield, _print_warnings():
        return asyncio.run(_Session(place, manner, shield).drive(prepare))


async def drive_shown(place: Place, prepare: Callable[[], Ready | Finished], stopping: StopSignals) -> Driven:
    """The drive, shown as `drive_here` shows it, for a caller that catches signals itself. Nobody is asked anything.

    RunRefusedError, before anything begins, where this process shows a run already: there is one stdout for both.
    """
    if isinstance(sys.stdout, PrintRouter) or unshield(sys.stdout) is not sys.stdout:
        raise RunRefusedError("this process shows a run already", next_step="Leave `show` out for this one.")
    with shield_output() as shield, _print_warnings():
        session = _Session(place, Manner(gates="stop"), shield)
        closed = sys.stdout is None  # by whoever started this program: then there is only the end to tell
        driven = await (drive(place, prepare, started=stopping.attach) if closed else session.show(prepare, stopping))
        session.print_end(driven, stopping)
        return driven


def drive_with_files(
    prepare: Callable[[DriveOptions], Ready | Finished], place: Place, options: DriveOptions, manner: Manner
) -> int:
    """As `drive_here`; where somebody else changed files meanwhile, whoever sits at the terminal is asked.

    FilesChangedError where nobody does.
    """
    try:
        return drive_here(lambda: prepare(options), place, manner)
    except FilesChangedError as error:
        if manner.show == "json" or not is_interactive():
            raise
        choice = _ask_about_files(error)
    if choice is None:
        say("Left as it is: nothing was touched or run.")
        return Exit.WAITING
    chosen = msgspec.structs.replace(options, files=choice)
    return drive_here(lambda: prepare(chosen), place, manner)


def _ask_about_files(error: FilesChangedError) -> FilesChoice | None:
    for line in printable_lines(error.message):
        say(line)
    say("")
    say("  restore  put back what the task began with; what is there now is kept for `agentos undo`")
    say("  keep     run the task on the files as they are")
    say("  leave    do nothing now")
    answer: Literal["restore", "keep", "leave"] = click.prompt(
        "What shall become of the files?",
        type=click.Choice(["restore", "keep", "leave"]),
        default="leave",
        show_choices=True,
        err=True,
    )
    return None if answer == "leave" else answer


def offer_rerun(preview: Callable[[], Previewed], manner: Manner) -> tuple[frozenset[str], Manner]:
    """What whoever sits at the terminal wants to run again of what changed, before anything is touched.

    Nobody is asked where nobody sits, or nothing that finished has changed.
    """
    if not manner.asks or manner.show == "quiet":
        return frozenset(), manner
    with suppress(AgentosError):  # whatever is wrong, the resume itself tells
        found = preview()
        goes_on = found.record.status != "complete" and found.record.holder is None
        if goes_on and found.compared.kept:
            for line in comparison_lines(found.compared, found.record.workflow_id):
                say(line)
            again = click.confirm("Run the changed ones again, and what used their results?", default=False, err=True)
            return frozenset({"changed"} if again else ()), msgspec.structs.replace(manner, compares=False)
    return frozenset(), manner


class _Saying(logging.Handler):
    """Warnings of the engine, for the person at the terminal: they quote ids, and what hooks print."""

    def emit(self, record: logging.LogRecord) -> None:
        _say("\n".join(printable_lines(record.getMessage())))


@contextmanager
def _print_warnings() -> Iterator[None]:
    handler, log = _Saying(logging.WARNING), logging.getLogger("agentos")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Session:
    def __init__(self, place: Place, manner: Manner, shield: Shield) -> None:
        self._place = place
        self._manner = manner
        self._shield = shield
        self._view: View | None = None
        self._closing = ExitStack()
        self._stream: EventStream | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._compared = NO_DIFFERENCE

    async def drive(self, prepare: Callable[[], Ready | Finished]) -> int:
        stopping = StopSignals(_say)
        try:
            with stopping.catch_signals():
                driven = await self.show(prepare, stopping, adopts=True)
        except asyncio.CancelledError:
            if stopping.received is None:
                raise
            return exit_of_signal(stopping.received)  # before anything began
        self.print_end(driven, stopping)
        if driven.began and stopping.received is not None and driven.facts.status == "paused":
            return exit_of_signal(stopping.received)
        return exit_of(driven.facts)

    async def show(
        self, prepare: Callable[[], Ready | Finished], stopping: StopSignals, *, adopts: bool = False
    ) -> Driven:
        """Drive it, and show it meanwhile."""

        def prepare_and_compare() -> Ready | Finished:
            ready = prepare()
            self._compared = ready.compared
            return ready

        try:
            return await drive(
                self._place,
                prepare_and_compare,
                started=lambda begun: self._on_start(begun, stopping),
                adopts=adopts,
                on_wait=lambda why: _say(f"Waiting: {printable(why)}"),
                waits=self._manner.waits,
            )
        finally:
            await self._close()

    def print_end(self, driven: Driven, stopping: StopSignals) -> None:
        """Say how it ended."""
        if driven.began:
            print_report(driven.facts, self._place, stopped=stopping.received is not None)
        else:
            self._print_nothing_to_do(driven)

    def _on_start(self, begun: Drive, stopping: StopSignals) -> None:
        stopping.attach(begun)
        self._shield.masker = begun.masker
        self._stream = begun.stream
        if self._manner.compares and self._manner.show != "quiet":
            for line in comparison_lines(self._compared, begun.facts.workflow_id):
                _say(line)
        model = RunModel(begun.facts.workflow_id, begun.machine.plan)
        view = self._view = open_view(self._manner.show, model, hint=HINT, begun_at=begun.facts.sequence)
        # What tasks print becomes lines of theirs; what others print goes beside the view, and never among data.
        beside = view.wrap_stream(sys.stderr if self._manner.show == "json" else sys.stdout)
        self._closing.enter_context(redirect_stderr(PrintRouter(view.wrap_stream(sys.stderr))))
        self._closing.enter_context(redirect_stdout(PrintRouter(beside)))
        after = 0 if view.wants_history else begun.facts.sequence
        feed = Feed(view)
        self._tasks.append(asyncio.create_task(feed.run(begun.stream.subscribe(after))))
        if view.wants_history:
            self._tasks.append(asyncio.create_task(self._guess(view, begun.machine.plan.name)))
        if self._manner.asks:
            asking = GatePrompt(begun, self._place, view, feed, stopping.asked, _write)
            self._tasks.append(asyncio.create_task(asking.ask_all()))

    async def _guess(self, view: View, name: str) -> None:
        """Tell a live view how long tasks took before; read aside, while the run goes on."""
        view.expect(await in_thread(usual_ms, self._place, name))

    async def _close(self) -> None:
        """What was published is shown to its end; then the terminal is as it was, whatever happened."""
        if self._stream is not None:
            self._stream.close()  # a drive that never began does not do that itself
        try:
            await asyncio.gather(*self._tasks)
        finally:
            if self._view is not None:
                self._view.close()
            self._closing.close()

    def _print_nothing_to_do(self, driven: Driven) -> None:
        facts = driven.facts
        if self._manner.show == "json":
            last = Client(place=self._place).events(facts.workflow_id, after=facts.sequence - 1)
            open_view("json", RunModel(facts.workflow_id)).show(last)
        left_out = {task_id for task_id, task in facts.tasks.items() if task.because.startswith(LEFT_OUT)}
        if driven.plan is not None:
            say(printable(kept_in_short(driven.plan.counts, driven.plan.verdicts, left_out)))
        say(f"Nothing is left to do: run {facts.workflow_id} is {facts.status}.")
        if left_out:
            say(f"To run all: agentos resume {shlex.quote(short_id(facts.workflow_id))} --all-tasks")


def print_report(facts: Facts, place: Place, *, stopped: bool = False) -> None:
    """The report, on stderr; a terminal that is gone gets none."""
    asked = gates_asked(place, facts) if len(facts.open_gates) > 1 else list(facts.open_gates)
    effects = any(facts.gates[gate_id].opened.kind == "ask" for gate_id in asked)
    evidence = evidence_of(place, facts.workflow_id) if effects else {}
    for line in report(facts, stopped=stopped, where=repo_argument(place), asked=asked, evidence=evidence):
        _say(line)


def open_view(show: Show, model: RunModel, *, hint: str = "", begun_at: int | None = None) -> View:
    """The view that fits what was asked for and what stdout is. `begun_at` is the sequence at which a drive began."""
    if show == "json":
        assert sys.__stdout__ is not None
        return JsonLines(cast("BinaryIO", sys.__stdout__.buffer))
    if show == "auto" and draws(sys.stdout):
        from agentos.cli.terminal.live import LiveView, console_for

        live = LiveView(model, console_for(sys.stdout), now=lambda: datetime.now(UTC), hint=hint, begun_at=begun_at)
        live.start()
        return live
    amount: Amount = "normal" if show == "auto" else show
    return PlainLines(unshield(sys.stdout), amount)


def draws(stream: TextIO) -> bool:
    """Whether a picture can be painted and repainted there."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def _say(text: str) -> None:
    with suppress(OSError):  # a terminal that is gone is not told that it is
        say(text)


def _write(text: str) -> None:
    """To the person who is asked something; stdout is a terminal then, and the view has stepped aside."""
    out = sys.__stdout__
    if out is not None:
        with suppress(OSError):
            out.write(text)
            out.flush()

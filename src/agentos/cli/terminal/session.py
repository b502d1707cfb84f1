"""One drive in this terminal: show it, ask at its gates, stop it in order, say how it ended.

`run`, `resume`, `fork` and `approve` all go through here; they differ in what they prepare.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Literal, TextIO

import msgspec

from agentos.cli.output import say
from agentos.cli.render.report import exit_of, report
from agentos.cli.render.text import printable_lines
from agentos.cli.terminal.earlier_durations import usual_ms
from agentos.cli.terminal.feed import Feed, View
from agentos.cli.terminal.gate_prompt import GatePrompt, is_interactive
from agentos.cli.terminal.jsonlines import JsonLines
from agentos.cli.terminal.model import RunModel
from agentos.cli.terminal.plain import Amount, PlainLines
from agentos.cli.terminal.shield import Shield, shield_output, unshield
from agentos.cli.terminal.stop_signals import StopSignals
from agentos.machine.board import GatePolicy
from agentos.machine.facts.fold import Facts
from agentos.tasks.process.adoption import adopt_orphans
from agentos.tasks.python.stdout import PrintRouter
from agentos.workflow.drive.conductor import conduct
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.event_stream import EventStream
from agentos.workflow.drive.mailbox import utc_now
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.place.place import Place
from agentos.workflow.place.worktree_index import remember
from agentos.workflow.start.ready_run import Finished, Ready, prepare_run

Show = Literal["auto", "quiet", "verbose", "json"]
Gates = Literal["ask", "stop", "wait", "reject"]
"""`ask` asks whoever sits at the terminal, and is `stop` where nobody does."""

HINT = "Ctrl-C stops in order; twice, at once"


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How a command shows a drive and treats its gates."""

    show: Show = "auto"
    gates: Gates = "ask"

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

    async def drive(self, prepare: Callable[[], Ready | Finished]) -> int:
        stopping = StopSignals(_say)
        try:
            with stopping.catch_signals():
                ready = await prepare_run(self._remember_after(prepare))
                if isinstance(ready, Finished):
                    return self._nothing_to_do(ready.facts)
                with adopt_orphans():
                    facts = await self._conduct(ready, stopping)
        except asyncio.CancelledError:
            if stopping.received is None:
                raise
            return stopping.exit_code  # before anything began
        print_report(facts, self._place, stopped=stopping.received is not None)
        if stopping.received is not None and facts.status == "paused":
            return stopping.exit_code
        return exit_of(facts)

    def _remember_after(self, prepare: Callable[[], Ready | Finished]) -> Callable[[], Ready | Finished]:
        def prepare_and_remember() -> Ready | Finished:
            ready = prepare()
            remember(self._place.root, self._place.database)
            return ready

        return prepare_and_remember

    async def _conduct(self, ready: Ready, stopping: StopSignals) -> Facts:
        def on_start(drive: Drive) -> None:
            stopping.attach(drive)
            self._shield.masker = drive.masker
            self._stream = drive.stream
            model = RunModel(drive.facts.workflow_id, drive.machine.plan)
            view = self._view = open_view(self._manner.show, model, hint=HINT)
            _listen(view, self._closing, data_only=self._manner.show == "json")
            after = 0 if view.wants_history else drive.facts.sequence
            feed = Feed(view)
            self._tasks.append(asyncio.create_task(feed.run(drive.stream.subscribe(after))))
            self._tasks.append(asyncio.create_task(self._guess(view, drive.machine.plan.name)))
            if self._manner.asks:
                asking = GatePrompt(drive, self._place.root, view, feed, stopping.asked, _write)
                self._tasks.append(asyncio.create_task(asking.ask_all()))

        try:
            return await conduct(ready, started=on_start)
        finally:
            await self._close()

    async def _guess(self, view: View, name: str) -> None:
        """Tell a live view how long tasks took before; read aside, while the run goes on."""
        if view.wants_history:
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

    def _nothing_to_do(self, facts: Facts) -> int:
        if self._manner.show == "json":
            store = self._place.open(readonly=True)
            try:
                last = store.read_events(facts.workflow_id, after=facts.sequence - 1)
            finally:
                store.close()
            open_view("json", RunModel(facts.workflow_id)).show(last)
        say(f"Nothing is left to do: run {facts.workflow_id} is {facts.status}.")
        return exit_of(facts)


def print_report(facts: Facts, place: Place, *, stopped: bool = False) -> None:
    """The report, on stderr; a terminal that is gone gets none."""
    for line in report(facts, stopped=stopped, where=repo_argument(place)):
        _say(line)


def repo_argument(place: Place) -> str:
    """What a command typed in this folder needs to find the place: nothing, where the folder is a part of it."""
    try:
        inside = Path.cwd().is_relative_to(place.root.resolve())
    except OSError:  # the folder is gone
        inside = False
    return "" if inside else f" --repo {shlex.quote(str(place.root))}"


def open_view(show: Show, model: RunModel, *, hint: str = "") -> View:
    """The view that fits what was asked for and what stdout is."""
    if show == "json":
        assert sys.__stdout__ is not None
        return JsonLines(sys.__stdout__.buffer)
    if show == "auto" and draws(sys.stdout):
        from agentos.cli.terminal.live import LiveView, console_for

        live = LiveView(model, console_for(sys.stdout), now=utc_now, hint=hint)
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


def _listen(view: View, closing: ExitStack, *, data_only: bool) -> None:
    """What tasks print becomes lines of theirs; what others print goes beside the view, and never among data."""
    beside = view.wrap_stream(sys.stderr if data_only else sys.stdout)
    closing.enter_context(redirect_stderr(PrintRouter(view.wrap_stream(sys.stderr))))
    closing.enter_context(redirect_stdout(PrintRouter(beside)))

"""Follows an agent while it works: what it says is shown, what it paid and did is written down, limits are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from agentos.machine.events import NO_USAGE, ModelCall, Usage
from agentos.secrets import Masker
from agentos.tasks.agents.adapters.adapter import AgentExit, AgentOutcome, AgentVerdict, Reader, StreamUpdate
from agentos.tasks.attempt import AttemptHost, AttemptLog
from agentos.tasks.process.output_capture import limit_lines
from agentos.tasks.process.supervision import Hold

TURN_S = 300.0
"""At least so often are the files captured while an agent works."""
LOOK_S = 0.2
LOOKS = 25
"""How often, and how many times after a turn, its tokens are looked for that are not yet in the agent's transcript."""
MAX_LINE_BYTES = 32 << 20
"""A longer line of the stream is cut: it will not be read, but it is in the log."""

Known = Callable[[str], Awaitable[None]]


class Follower:
    """Takes an agent's stdout. The stream is read as it comes; what must be durable is written behind it, in order.

    While the files are captured after a turn the agent is held still: else they would hold a piece of the next one. A
    turn after which it was quicker than we are is not captured; the next one is.

    An agent is stopped where it goes on beyond a limit, never for the answer that reached it: that is paid for, and
    nothing would be gained. So what it says decides, and not whether we are quicker than its last event. Beyond a
    budget, the tools of an answer that was paid for still do their work: the agent ends with that turn.
    """

    def __init__(
        self,
        reader: Reader,
        host: AttemptHost,
        *,
        masker: Masker,
        log: AttemptLog | None,
        agent: str = "",
        provider: str = "",
        asked_model: str = "",
        on_session: Known,
        max_turns: int | None = None,
        captures: bool = False,
        tokens: Callable[[str], Usage | None] | None = None,
        counted: Usage = NO_USAGE,
        priced: Callable[[Usage, str], Usage] = lambda used, _: used,
    ) -> None:
        """`priced` gives the cost of what was used with a model, where the agent has not told it; `captures`: what it
        does to files is captured turn by turn; `tokens` looks up what its session has used, where the stream does not
        tell in time (it blocks), of which `counted` was counted before."""
        self._reader, self._host, self._masker, self._log = reader, host, masker, log
        self._mask = masker.stream()
        self._on_session = on_session
        self._max_turns = max_turns
        self._captures = captures
        self._tokens, self._counted = tokens, counted
        self._looks = 0
        self._told = False
        """The stream tells what it uses: the transcript, which may be ahead of that, is read once both have ended."""
        self._priced = priced
        self._rest = bytearray()
        self.session = ""
        self._news = asyncio.Event()
        self._new_session = ""
        self._unpaid = Usage()
        self._turn_over = False
        self._next_begun = False
        """It was heard to do something since the last turn ended."""
        self._hold: Hold | None = None
        self._over = False
        self._used_up = False
        self._agent, self._provider, self._asked_model = agent, provider, asked_model
        self._turn_began = datetime.now(UTC)
        self.model = ""
        self.turns = 0
        self.used = Usage()
        self.stop: asyncio.Future[AgentOutcome] = asyncio.get_running_loop().create_future()
        """Done when the agent has to be stopped, and why."""

    def feed(self, data: bytes) -> None:
        self._take(self._mask.feed(data))

    def _take(self, data: bytes) -> None:
        if not data:
            return
        if self._log is not None:
            self._log.write("stdout", data)
        self._rest += data
        if b"\n" in data:
            *lines, rest = self._rest.split(b"\n")
            self._rest = rest
            self._read(lines)
        elif len(self._rest) > MAX_LINE_BYTES:
            self._rest.clear()

    def _read(self, lines: Sequence[bytes | bytearray]) -> None:
        shown: list[str] = []
        for line in lines:
            heard = self._reader.line(line.decode(errors="replace").removesuffix("\r"))
            shown += heard.shown
            self._note(heard)
        for text in limit_lines(shown):
            self._host.output("stdout", self._masker.text(text))

    def _note(self, heard: StreamUpdate) -> None:
        if heard.goes_on and self._max_turns is not None and self.turns >= self._max_turns:
            self._stop("turn_limit")
        if self._used_up and heard.used is not None:
            self._stop("budget")
        self.model = heard.model or self.model
        if heard.session and heard.session != self.session:
            self.session = self._new_session = heard.session
        if heard.used is not None:
            self._unpaid += heard.used
            self._told = True
        if heard.turn:
            self.turns += 1
            self._turn_over, self._next_begun, self._looks = True, False, LOOKS
            if self._hold is not None and (self._captures or self._used_up):
                self._hold.stop()
        elif heard.goes_on is not None:
            self._next_begun = True
        if self._new_session or heard.used is not None or heard.turn:
            self._news.set()

    def hold_with(self, hold: Hold) -> None:
        """Hold the agent still with this while files are captured."""
        self._hold = hold

    def _stop(self, why: AgentOutcome) -> None:
        if not self.stop.done():
            self.stop.set_result(why)
            if self._hold is not None:  # until it is told to end it may do and pay for much
                self._hold.stop()

    async def write_down(self) -> None:
        """Make durable what was heard, until the stream has ended and nothing is left."""
        while not (self._over and not self._news.is_set()):
            looks_again = self._looks_up and self._looks > 0 and self.used.calls < self.turns
            late = False
            try:
                await asyncio.wait_for(self._news.wait(), LOOK_S if looks_again else TURN_S)
            except TimeoutError:
                if looks_again:
                    self._looks -= 1
                    await self._pay_by_session()
                    self._end_if_used_up()
                    continue
                late = True
                if self._hold is not None:
                    self._hold.stop()
            self._news.clear()
            try:
                await self._write_news(late=late)
            finally:
                if self._hold is not None and not self._turn_over and not self.stop.done():
                    self._hold.go_on()

    @property
    def _looks_up(self) -> bool:
        return self._tokens is not None and not self._told

    async def _write_news(self, *, late: bool) -> None:
        session, self._new_session = self._new_session, ""
        if session:
            await self._on_session(session)
        unpaid, self._unpaid = self._unpaid, Usage()
        await self._pay(self._priced(unpaid, self.model), self._turn())
        if self._turn_over and self._looks_up:
            await self._pay_by_session()
        if self._turn_over and self._hold is not None:
            self._hold.read_rest()
        turn, self._turn_over = self._turn_over, False
        if turn and self._log is not None:
            self._log.sync()
        if self._over or (self._hold is not None and self._hold.over):
            return  # the capture of the whole attempt follows at once
        if late or (turn and not (self._hold is not None and self._next_begun)):
            await self._host.capture_turn()
        if turn:
            self._end_if_used_up()

    def _end_if_used_up(self) -> None:
        """The last turn that was paid for is over."""
        if self._used_up and not self._next_begun:
            self._stop("budget")

    async def _pay_by_session(self) -> None:
        """What is in its transcript, and was not counted."""
        total = await asyncio.to_thread(self._tokens, self.session) if self._tokens is not None else None
        if total is not None:
            await self._pay(self._priced(total.beyond(self._counted + self.used), self.model), self._turn())

    async def settle(self, verdict: AgentVerdict, *, whole_session: bool = False) -> None:
        """Write down what it had not told. Where it says what all of it cost, that counts instead of what was reckoned.

        The journal adds up: what was reckoned too high is taken back with a cost below zero. `whole_session`: what it
        says it used is that of all attempts in its session.
        """
        await self._pay_by_session()
        known = self._counted + self.used if whole_session else self.used
        rest = self._priced((verdict.used or Usage()).beyond(known), self.model)
        if verdict.cost_usd is not None:
            rest = msgspec.structs.replace(rest, cost_usd=verdict.cost_usd - self.used.cost_usd)
        await self._pay(rest, self._turn() if rest.tokens and self.used == NO_USAGE else None)

    def _turn(self) -> ModelCall:
        model, provider = self._masker.text(self.model or self._asked_model), self._provider
        if not provider and "/" in model:  # as agents name it that call models of several
            provider, _, model = model.partition("/")
        return ModelCall(started=self._turn_began, provider=provider, model=model, agent=self._agent)

    async def _pay(self, used: Usage, turn: ModelCall | None) -> None:
        if used == Usage():
            return
        await self._host.record_usage(used, turn)
        self._turn_began = datetime.now(UTC)
        self.used += used
        self._used_up = self._used_up or self._host.allowance().used_up

    def end_if_failed(self, writing: asyncio.Task[None]) -> None:
        """Stop the agent if what it does cannot be written down any more."""
        if not writing.cancelled() and writing.exception() is not None:
            self._stop("killed")

    def verdict(self, ended: AgentExit) -> AgentVerdict:
        return self._reader.verdict(ended)

    def close(self) -> None:
        """The stream has ended."""
        self._take(self._mask.finish())
        if self._rest:
            line, self._rest = self._rest, bytearray()
            self._read([line])
        self._over = True
        self._news.set()

"""Tools that begin runs, go on with them, and stop them. Each run is driven by a process that outlives the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from mcp.server.mcpserver import Context

from agentos.client.answers import Became, deliver
from agentos.client.detached import Detached, fork_detached, resume_detached, start_detached
from agentos.client.places import FoundRun
from agentos.client.types import Pause
from agentos.client.worktree import Client
from agentos.exceptions import AgentosError, LeaseHeldError, WorktreeBusyError
from agentos.mcp.reads import Answer, Reads
from agentos.render.event_text import describe_event

WAIT_S = 20
"""Less than what any client allows a tool by default."""
MOST_WAIT_S = 3600
BEAT_S, TELL_S = 10.0, 0.2
"""A client that hears nothing gives a tool up: so often it is told that the run goes on. Of much news the newest."""
LET_GO_S, LOOK_S = 2.0, 0.02
"""A driver writes the end of its drive before it lets the run go: so long that is waited for, since the next call may
go on with the run."""
_BECAME: Mapping[Became, str] = {
    "applied": "paused",
    "received": "tasks that run may end, no others start",
    "kept": "kept for the run, which takes it up when it goes on",
}


class Actions:
    """Makes runs of one worktree go."""

    def __init__(self, reads: Reads) -> None:
        self._reads = reads
        self._repo: Path = reads.repo

    async def run_start(
        self,
        ctx: Context,
        workflow: str,
        run: str,
        params: Mapping[str, Any] = {},
        wait_s: int = WAIT_S,
    ) -> Answer:
        """Start a workflow (a name in workflows/, or a file) as a durable run.

        `run` is an id of your choice, such as tests-1. The same call again starts nothing twice: it tells how that run
        stands. Waits up to `wait_s` for its end; the run goes on in any case."""
        start = partial(start_detached, workflow, params, run, repo=self._repo, goes_on=False)
        try:
            begun = await asyncio.to_thread(start)
        except LeaseHeldError:  # the same run, just being begun by another call
            begun = None
        except WorktreeBusyError:  # changed by another run, or by this one, which another server just begins
            if not await self._is_there(run):
                raise
            begun = None
        is_new = begun is not None and begun.pid is not None
        return {"started": is_new, **await self._follow(ctx, run, 0 if is_new else None, wait_s)}

    async def run_resume(
        self,
        ctx: Context,
        run: str,
        rerun: Sequence[str] = (),
        files: Literal["ask", "restore", "keep"] = "ask",
        wait_s: int = WAIT_S,
    ) -> Answer:
        """Go on with a run that failed, was paused or interrupted: what is finished is kept, the rest runs.

        An edited workflow is taken up. `rerun`: tasks to run again (`changed`: all that were edited). `files`: where a
        human changed files that an interrupted task had begun to change; ask yours which. resume_preview tells first
        what it would do. Waits up to `wait_s`."""
        found = await asyncio.to_thread(self._reads.find, run)
        resumed = await asyncio.to_thread(partial(resume_detached, found, rerun=rerun, files=files))
        told = await self._follow(ctx, resumed.workflow_id, found.record.sequence, wait_s)
        return {"resumed": resumed.pid is not None, **told}

    async def run_fork(
        self,
        ctx: Context,
        run: str,
        new_run: str,
        checkpoint: str = "",
        params: Mapping[str, Any] = {},
        wait_s: int = WAIT_S,
    ) -> Answer:
        """Begin a new run, `new_run`, from a checkpoint of a run (its newest, unless one is named), with its finished
        tasks and, where given, other parameters."""
        found = await asyncio.to_thread(self._reads.find, run)
        pairs = [f"{name}:={msgspec.json.encode(one).decode()}" for name, one in params.items()]
        forked: Detached = await asyncio.to_thread(
            partial(fork_detached, found, checkpoint, workflow_id=new_run, params=pairs)
        )
        return await self._follow(ctx, forked.workflow_id, 0, wait_s)

    async def run_pause(self, run: str, reason: str = "") -> Answer:
        """Let a run's tasks end and start no others. run_resume goes on."""
        found = await asyncio.to_thread(self._reads.find, run)
        became = await asyncio.to_thread(deliver, found, Pause(reason=reason))
        return {"run": found.record.workflow_id, "pause": _BECAME[became]}

    async def _is_there(self, run: str) -> bool:
        """Whether there is a run of exactly this id, now or in a moment."""
        patience = time.monotonic() + LET_GO_S
        while time.monotonic() < patience:
            with suppress(AgentosError):  # no run, or no database yet
                if (await asyncio.to_thread(self._reads.find, run)).record.workflow_id == run:
                    return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _follow(self, ctx: Context, run: str, after: int | None, wait_s: int) -> Answer:
        """How the run stands at the end of its drive, or when the time is over; the client hears of it meanwhile."""
        found = await asyncio.to_thread(self._reads.find, run)
        if wait_s > 0:
            after = found.record.sequence if after is None else after
            ended = await self._tell_progress(ctx, found, after, min(wait_s, MOST_WAIT_S))
            patience = time.monotonic() + LET_GO_S
            found = await asyncio.to_thread(self._reads.find, run)
            while ended and found.record.holder is not None and time.monotonic() < patience:
                await asyncio.sleep(LOOK_S)
                found = await asyncio.to_thread(self._reads.find, run)
        return await asyncio.to_thread(self._reads.show, found)

    async def _tell_progress(self, ctx: Context, found: FoundRun, after: int, wait_s: int) -> bool:
        """Whether its drive ended meanwhile."""
        began, words = time.monotonic(), "it goes on"
        told_at, is_news = began - TELL_S, False
        async with aclosing(Client(place=found.place).watch(found.record.workflow_id, after=after)) as events:
            coming = None
            try:
                while (left := wait_s - (time.monotonic() - began)) > 0:
                    coming = coming or asyncio.ensure_future(anext(events, None))
                    quiet = told_at + (TELL_S if is_news else BEAT_S) - time.monotonic()
                    done, _ = await asyncio.wait([coming], timeout=max(0, min(left, quiet)))
                    if done:
                        if (event := coming.result()) is None:
                            return True
                        coming = None
                        if said := describe_event(event):
                            words, is_news = said, True
                    if time.monotonic() - told_at >= (TELL_S if is_news else BEAT_S):
                        await ctx.report_progress(time.monotonic() - began, message=words)
                        told_at, is_news = time.monotonic(), False
                return False
            finally:
                if coming is not None and not coming.done():
                    coming.cancel()
                    await asyncio.wait([coming])

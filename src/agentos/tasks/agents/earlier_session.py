"""Finds the session that an attempt which was interrupted has left, by what the journal knows of it."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from agentos.machine.events import AgentSession
from agentos.tasks.agents.adapters import opencode
from agentos.tasks.agents.assignment import Assignment
from agentos.tasks.agents.transcript import transcript_of
from agentos.tasks.process.adoption import start_own

LISTING_S = 30.0


class EarlierSession(NamedTuple):
    """A session to go on with."""

    id: str = ""
    """Empty: there is none, or nobody knows which."""
    name: str = ""
    """What the agent is given to find it."""


async def find_earlier_session(errand: Assignment) -> EarlierSession:
    session = errand.spec.session
    if session is None or session.agent != errand.work.agent:
        return EarlierSession()
    if session.agent == "claude":
        return await asyncio.to_thread(_find_by_transcript, errand, session)
    if session.id:
        return EarlierSession(session.id, session.id)
    found = await _find_by_title(errand, session.title) if session.title else ""
    return EarlierSession(found, found)


def _find_by_transcript(errand: Assignment, session: AgentSession) -> EarlierSession:
    """Claude keeps sessions by folder: that of an isolated attempt, whose worktree is gone, it finds by path alone.

    One that was killed before it wrote anything has none; then the session it was a copy of goes on.
    """
    for id in filter(None, (session.id, session.forked_from)):
        if found := transcript_of(errand.agent.TRAITS.transcript, id, errand.env):
            return EarlierSession(id, found)
    return EarlierSession(session.id, session.id)


async def _find_by_title(errand: Assignment, title: str) -> str:
    process = await start_own(
        errand.program,
        *opencode.LISTING,
        cwd=errand.cwd,
        env=errand.env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        listed, _ = await asyncio.wait_for(process.communicate(), LISTING_S)
    except TimeoutError:
        return ""
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return opencode.find_session(listed.decode(errors="replace"), title)

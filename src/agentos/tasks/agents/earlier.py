"""Finds the session that an attempt which was cut off has left, by what the journal knows of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentos.tasks.agents import opencode
from agentos.tasks.agents.errand import Errand

LISTING_S = 30.0


class Earlier(NamedTuple):
    """A session to go on with."""

    id: str = ""
    """Empty: there is none, or nobody knows which."""
    name: str = ""
    """What the agent is given to find it."""


async def earlier_session(errand: Errand) -> Earlier:
    session = errand.spec.session
    if session is None or session.agent != errand.work.agent:
        return Earlier()
    if session.id:
        name = await asyncio.to_thread(_transcript, errand, session.id) if session.agent == "claude" else session.id
        return Earlier(session.id, name)
    found = await _listed(errand, session.title) if session.title else ""
    return Earlier(found, found)


def _transcript(errand: Errand, id: str) -> str:
    """Claude keeps sessions by folder: that of an isolated attempt, whose worktree is gone, it finds by path alone."""
    settings = errand.env.get("CLAUDE_CONFIG_DIR") or Path(errand.env.get("HOME") or Path.home()) / ".claude"
    found = sorted(Path(settings).glob(f"projects/*/{id}.jsonl"))
    return str(found[0]) if found else id


async def _listed(errand: Errand, title: str) -> str:
    process = await asyncio.create_subprocess_exec(
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

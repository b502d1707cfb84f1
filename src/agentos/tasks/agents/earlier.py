"""Finds the session that an attempt which was cut off has left, by what the journal knows of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from agentos.tasks.agents import opencode
from agentos.tasks.agents.job import Job

LISTING_S = 30.0


class Earlier(NamedTuple):
    """A session to go on with."""

    id: str = ""
    """Empty: there is none, or nobody knows which."""
    name: str = ""
    """What the agent is given to find it."""


async def earlier_session(job: Job) -> Earlier:
    session = job.spec.session
    if session is None or session.agent != job.work.agent:
        return Earlier()
    if session.id:
        name = await asyncio.to_thread(_transcript, job, session.id) if session.agent == "claude" else session.id
        return Earlier(session.id, name)
    found = await _listed(job, session.title) if session.title else ""
    return Earlier(found, found)


def _transcript(job: Job, id: str) -> str:
    """Claude keeps sessions by folder: that of an isolated attempt, whose worktree is gone, it finds by path alone."""
    settings = job.env.get("CLAUDE_CONFIG_DIR") or Path(job.env.get("HOME") or Path.home()) / ".claude"
    found = sorted(Path(settings).glob(f"projects/*/{id}.jsonl"))
    return str(found[0]) if found else id


async def _listed(job: Job, title: str) -> str:
    process = await asyncio.create_subprocess_exec(
        job.program,
        *opencode.LISTING,
        cwd=job.cwd,
        env=job.env,
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

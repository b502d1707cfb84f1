"""Waiting for work that must not be left half done, whoever loses patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def run_to_end(work: Coroutine[Any, Any, T], *, undo: Callable[[T], None] | None = None) -> T:
    """What the work gives. Where we are cancelled meanwhile it still runs to its end; then the cancellation is raised.

    `undo` gets the result that nobody will take any more.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        return task.result()
    if task.exception() is None and undo is not None:
        undo(task.result())
    raise cancelled


async def run_uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, also where we are cancelled meanwhile: what it ends is done, and counts."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    return task.result()


async def in_thread(work: Callable[..., T], *args: Any, **named: Any) -> T:
    """As `asyncio.to_thread`, but never gone before the thread is: what it uses may be closed afterwards."""
    return await run_to_end(asyncio.to_thread(work, *args, **named))

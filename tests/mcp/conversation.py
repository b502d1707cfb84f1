"""What these tests share: the library's own client, talking over stdio to the real program."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent, Tool

from agentos.mcp.server import make_server
from tests.forks import SOURCE

T = TypeVar("T")
PROGRAM = ("-m", "agentos", "mcp")


class ToolFailed(Exception):
    """A tool answered with an error: its text, as a model reads it."""


class Told(NamedTuple):
    """A notification of progress."""

    progress: float
    message: str


class Caller:
    """`await call("run_show", run="r-1")`, and what came with it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.progress: list[Told] = []
        self.length = 0
        """Characters of the newest answer."""

    async def __call__(self, tool: str, **arguments: Any) -> dict[str, Any]:
        async def note(progress: float, total: float | None, message: str | None) -> None:
            self.progress.append(Told(progress, message or ""))

        given = await self.client.call_tool(tool, arguments, progress_callback=note)
        [content] = given.content
        assert isinstance(content, TextContent)
        self.length = len(content.text)
        assert given.structured_content is None, "everything once: a model pays for it"
        if given.is_error:
            raise ToolFailed(content.text)
        answer: dict[str, Any] = json.loads(content.text)
        return answer

    async def tools(self) -> list[Tool]:
        return list((await self.client.list_tools()).tools)


def converse(
    repo: Path,
    talk: Callable[[Caller], Awaitable[T]],
    *,
    env: Mapping[str, str] | None = None,
    program: tuple[str, ...] = PROGRAM,
) -> T:
    """What a conversation with a server of this repository gives: the program, in a process of its own."""
    server = StdioServerParameters(
        command=sys.executable,
        args=list(program),
        cwd=repo,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})},
    )
    return _converse(stdio_client(server), talk)


def converse_here(repo: Path, talk: Callable[[Caller], Awaitable[T]]) -> T:
    """The same in this process, at a tenth of the price: for what the tools say."""
    return _converse(make_server(repo), talk)


def _converse(server: Any, talk: Callable[[Caller], Awaitable[T]]) -> T:
    async def go() -> T | BaseException:
        async with Client(server) as client:
            try:
                return await talk(Caller(client))
            except BaseException as error:  # the client wraps what goes through it into groups
                return error

    if isinstance(gave := asyncio.run(go()), BaseException):
        raise gave
    return gave


def server_process() -> psutil.Process:
    """The program that the client has started."""
    [found] = [one for one in psutil.Process().children() if PROGRAM[2] in one.cmdline()]
    return found

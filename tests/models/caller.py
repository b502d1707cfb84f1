"""Another process that calls with a credential: `python -m tests.models.caller BOOK CREDENTIAL LIMITS [SECONDS TIMES]`.

Without SECONDS it says `entered`, holds its slot until a line comes, and says `left`; else it makes so many calls of
that length, and says when each began and ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from agentos.tasks.llm.limiter import Limiter
from agentos.tasks.llm.model_settings import CallLimits

ROOT = Path(__file__).parents[2]


class Caller:
    """Such a process, from outside."""

    def __init__(self, book: Path, credential: str, limits: CallLimits, *busy: float) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        told = msgspec.json.encode(limits).decode()
        argv = [sys.executable, "-m", "tests.models.caller", str(book), credential, told, *map(str, busy)]
        self.process = subprocess.Popen(
            argv, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def hears(self) -> Any:
        """The next thing it says."""
        line = _pipe(self.process.stdout).readline()
        assert line, f"it ended with {self.process.wait()}"
        return json.loads(line)

    def go_on(self) -> None:
        _pipe(self.process.stdin).write("\n")
        _pipe(self.process.stdin).flush()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            _pipe(pipe).close()
        self.process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def say(word: Any) -> None:
    print(json.dumps(word), flush=True)


async def hold(limiter: Limiter, credential: str, limits: CallLimits) -> None:
    async with limiter.call(credential, limits, lambda why: say({"waits": why})):
        say("entered")
        await asyncio.to_thread(sys.stdin.readline)
    say("left")


async def keep_calling(limiter: Limiter, credential: str, limits: CallLimits, seconds: float, times: int) -> None:
    for _ in range(times):
        async with limiter.call(credential, limits, lambda _: None):
            began = time.time()
            await asyncio.sleep(seconds)
            say([began, time.time()])


def main(book: str, credential: str, told: str, *busy: str) -> None:
    limiter, limits = Limiter(lambda: Path(book)), msgspec.json.decode(told, type=CallLimits)
    if busy:
        asyncio.run(keep_calling(limiter, credential, limits, float(busy[0]), int(float(busy[1]))))
    else:
        asyncio.run(hold(limiter, credential, limits))


if __name__ == "__main__":
    main(*sys.argv[1:])

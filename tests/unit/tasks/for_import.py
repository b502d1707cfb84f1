"""Functions that tests have found by name, here or in another process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agentos.tasks.context import Context

NOT_CALLABLE = 3


def double(number: int) -> int:
    return 2 * number


def whoami(ctx: Context) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "pgid": os.getpgid(0),
        "stdin": sys.stdin.read(),
        "cwd": os.getcwd(),
        "env": os.environ.get("FROM_TASK", ""),
        "attempt_id": os.environ["AGENTOS_ATTEMPT_ID"],
        "ctx": [ctx.workflow_id, ctx.task_id, ctx.attempt, ctx.idempotency_key],
    }


async def talks(ctx: Context) -> bytes:
    print("to stdout")
    ctx.message("user", b"\xff")
    ctx.set("k", {"v": 1})
    ctx.progress("half way")
    ctx.inject("more", run="true", inputs={"raw": b"\x00"})
    await asyncio.sleep(0)
    return b"\xfe"


def returns_coroutine() -> Any:
    async def later() -> str:
        return "awaited"

    return later()


def echo(value: Any) -> Any:
    return value


def exits() -> None:
    sys.exit(3)


def vanishes() -> None:
    print("last words", file=sys.stderr)
    os._exit(0)


def crashes() -> None:
    os.kill(os.getpid(), 11)


def unstorable() -> Any:
    return {"a": [object()]}


def raises() -> None:
    raise LookupError("from afar")


def sleeps_with_a_child(pids: str, cleaned: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(pids).write_text(f"{os.getpid()} {child.pid}\n")
    try:
        time.sleep(600)
    finally:
        Path(cleaned).write_text("cleaned")


def leaves_a_thread_behind() -> str:
    import threading

    threading.Thread(target=time.sleep, args=(600,)).start()
    return "done"


def touch(path: str) -> None:
    Path(path).write_text("ran")

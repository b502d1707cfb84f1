"""What a document shows, typed for real: blocks that it marks are run in order, in one repository.

```python file=NAME     is saved under that name (yaml likewise, in folders too)
```python run           is run as a script, and must end well
```console run          is typed: `$ ` begins a command, `> ` goes on with it, the rest is what it prints (… stands
                        for anything)
```console run all      is typed, too: what it prints includes its messages (stderr), as at a terminal
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentos import Client
from agentos.exceptions import NotFoundError

PATIENCE_S = 30.0
"""How long a command may take to print what it should, before it is killed on purpose."""
QUIET_S = 1.0
"""So long without an event, and a run has come to the task in which it is to be killed."""


class Block(NamedTuple):
    language: str
    mark: str
    text: str
    line: int


class Typed(NamedTuple):
    command: str
    printed: list[str]


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text()
    for found in re.finditer(r"^```(\w+) ?(.*)\n((?:.*\n)*?)```$", text, flags=re.MULTILINE):
        yield Block(found[1], found[2], found[3], text[: found.start()].count("\n") + 1)


def typed(block: Block) -> list[Typed]:
    session: list[Typed] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            session.append(Typed(line[2:], []))
        elif line.startswith("> "):
            session[-1] = Typed(f"{session[-1].command}\n{line[2:]}", [])
        else:
            session[-1].printed.append(line)
    return session


def follow(document: Path, desk: Path) -> None:
    """Do in this repository what the document says, with what the PATH has, and compare what is printed."""
    for block in blocks(document):
        where = f"{document.name}:{block.line}"
        if block.mark.startswith("file="):
            file = desk / block.mark.removeprefix("file=")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.mark == "run" and block.language == "python":
            (desk / f"block_{block.line}.py").write_text(block.text)
            done = subprocess.run(["python", f"block_{block.line}.py"], cwd=desk, capture_output=True, text=True)
            assert done.returncode == 0, f"{where}: {done.stderr}"
        elif block.mark in ("run", "run all"):
            for command, expected in typed(block):
                printed = answer(command, expected, desk, all_of_it=block.mark == "run all")
                assert len(printed) == len(expected), f"{where}: $ {command}\n{printed}"
                for line, pattern in zip(printed, expected, strict=True):
                    fits = re.fullmatch(".*".join(map(re.escape, narrow(pattern).split("…"))), narrow(line))
                    assert fits, f"{where}: $ {command}\n{line}\nis not\n{pattern}"


def narrow(line: str) -> str:
    """The same with columns close together: how wide one is depends on what time it was."""
    return re.sub(r"(?<=\S) {2,}", "  ", line)


def answer(command: str, expected: list[str], desk: Path, *, all_of_it: bool = False) -> list[str]:
    killed = re.fullmatch(r"(.*) & sleep ([\d.]+); kill -9 \$!", command)
    if killed:
        return answer_of_killed(killed[1], float(killed[2]), expected, desk)
    messages = subprocess.STDOUT if all_of_it else subprocess.PIPE
    done = subprocess.run(
        ["bash", "-c", command], cwd=desk, env=at_terminal(), stdout=subprocess.PIPE, stderr=messages, text=True
    )
    died = -signal.SIGKILL if "AGENTOS_CRASH_AT" in command else 0
    assert done.returncode in (died, 128 + signal.SIGKILL if died else 0), f"$ {command}\n{done.stderr or done.stdout}"
    return done.stdout.splitlines()


def answer_of_killed(command: str, after_s: float, expected: list[str], desk: Path) -> list[str]:
    """Kill it as the document says, but on a busy machine not before it has come as far as on an idle one."""
    with (desk / "printed").open("w+") as out:
        before = sequence = journal_length(desk)
        process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=desk, env=at_terminal(), stdout=out)
        began = moved = time.monotonic()
        while time.monotonic() < began + PATIENCE_S and process.poll() is None:
            now = journal_length(desk)
            if now != sequence:
                sequence, moved = now, time.monotonic()
            quiet = sequence > before and time.monotonic() - moved > QUIET_S
            printed = (desk / "printed").read_text().splitlines()
            if quiet and len(printed) >= len(expected) and time.monotonic() - began > after_s:
                break
            time.sleep(0.05)
        process.kill()
        assert process.wait() == -signal.SIGKILL, f"$ {command} was over before it could be killed"
    return (desk / "printed").read_text().splitlines()


def at_terminal() -> dict[str, str]:
    """A terminal shows each line at once; what a file is to get would be lost in a kill."""
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def journal_length(desk: Path) -> int:
    """Of all runs there: it grows with each event."""
    try:
        return sum(record.sequence for record in Client(desk).list_runs())
    except NotFoundError:
        return 0

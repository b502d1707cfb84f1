"""Where attempts are performed. What is done in one is a performer's business; a runner says where, and ends it there.

`LocalRunner` is this machine: the driver's event loop, a thread of it or a child process, as the task's kind and its
`isolation` ask for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentos.ids import WorkflowId
from agentos.machine.attempt_result import AttemptResult
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Mark, Performer

if TYPE_CHECKING:
    from agentos.tasks.process.orphans import EndedProcess


class Runner(Protocol):
    """A place where attempts are performed. One belongs to one drive."""

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        """Let the attempt begin. Its mark names it to a later driver, too."""

    async def wait(self, mark: Mark) -> AttemptResult:
        """What came of it. Cancelling this ends the work, and comes back as a result that says so."""

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        """Attempts of a run in this worktree that are at work here, whoever started them. Blocks."""

    def end(self, mark: Mark) -> list[EndedProcess]:
        """End an attempt that nobody waits for: gone on return, unless what is given back says otherwise. Blocks."""

    def close(self) -> None:
        """Forget what was started and is waited for by nobody."""


class LocalRunner:
    """Performs attempts on this machine."""

    def __init__(self, performers: Mapping[str, Performer]) -> None:
        self._performers = performers
        self._begun: dict[Mark, Coroutine[Any, Any, AttemptResult]] = {}

    def start(self, spec: AttemptSpec, host: AttemptHost) -> Mark:
        mark = spec.mark
        self._begun[mark] = self._performers[spec.definition.kind](spec, host)
        return mark

    async def wait(self, mark: Mark) -> AttemptResult:
        return await self._begun.pop(mark)

    def find(self, workflow_id: WorkflowId, root: Path) -> list[Mark]:
        from agentos.tasks.process.orphans import attempt_processes

        carried = {Mark(process.attempt_id, process.root) for process in attempt_processes()}
        prefix = f"{workflow_id}/"
        return sorted(one for one in carried if one.attempt_id.startswith(prefix) and one.root == str(root))

    def end(self, mark: Mark) -> list[EndedProcess]:
        from agentos.tasks.process.orphans import end_attempt

        return end_attempt(mark)

    def close(self) -> None:
        for attempt in self._begun.values():
            attempt.close()
        self._begun.clear()

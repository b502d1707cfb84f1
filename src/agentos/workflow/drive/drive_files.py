"""What a drive does about files beside its attempts: at the end of a layer, and behind approvals."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentos.ids import GateId, TaskId
from agentos.machine.board import order
from agentos.machine.inputs import CoveredFilesChanged, FilesSeen
from agentos.machine.machine import Machine
from agentos.machine.rules import merges
from agentos.machine.rules.files import covering_gates
from agentos.secrets import Masker
from agentos.workflow.drive.mailbox import Mailbox
from agentos.workflow.drive.patience import in_thread

if TYPE_CHECKING:
    from agentos.workflow.files.captures import FileAttempts
    from agentos.workflow.files.source_files import SourceLooks

Digests = dict[tuple[GateId, TaskId], dict[str, str]]
"""For each approval and its task: the files that the task's command names, each with a digest."""


class DriveFiles:
    """The files of one drive. What it looks for, and when, the machine says."""

    def __init__(
        self,
        make: Callable[[], FileAttempts] | None,
        make_sources: Callable[[], SourceLooks] | None,
        machine: Machine,
        mail: Mailbox,
        root: Path,
        masker: Masker,
        in_background: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        machine.captures = make is not None
        self._make = make
        self._made: FileAttempts | None = None
        self._make_sources = make_sources
        self._sources: SourceLooks | None = None
        self._machine = machine
        self._mail = mail
        self._root = root
        self._masker = masker
        self._in_background = in_background
        self._at_layer_end = False
        """Whether files are being looked at for the end of a layer."""
        self._looks: set[TaskId] = set()
        """Tasks whose files are being looked at."""

    @property
    def attempts(self) -> FileAttempts | None:
        """What looks at files around the attempts that change some, made with the first of them. None: nothing does."""
        if self._made is None and self._make is not None:
            self._made = self._make()
        return self._made

    @property
    def existing(self) -> FileAttempts | None:
        """The same, if it was made."""
        return self._made

    @property
    def sources(self) -> SourceLooks | None:
        """What looks at the sources of tasks, made with the first that has some. None: nothing of the run is kept."""
        if self._sources is None and self._make_sources is not None:
            self._sources = self._make_sources()
        return self._sources

    async def close(self) -> None:
        """Let go of worktrees of attempts, where there are any; no attempt is under way any more."""
        if self._sources is not None:
            await in_thread(self._sources.reader.save)
        if self._made is not None:
            await self._made.close()

    def look_if_wanted(self) -> None:
        """Begin to look at what the machine waits for."""
        layer = self._machine.capture_wanted
        if layer is not None and self.attempts is not None and not self._at_layer_end:
            self._at_layer_end = True
            self._in_background(self._end_layer(self.attempts, layer))
        if wanted := self._machine.looks_wanted - self._looks:
            self._looks |= wanted
            tasks = self._machine.plan.tasks
            self._in_background(self._look_for(sorted(wanted, key=lambda task_id: order(tasks[task_id]))))

    async def _end_layer(self, files: FileAttempts, layer: int) -> None:
        """At the end of a layer: merge what isolated tasks did, write it, capture the files; one step at a time."""
        machine, mail = self._machine, self._mail
        try:
            covered = await self.digest_covered()
            if pending := merges.pending(machine, layer):
                facts = machine.facts
                tasks = {task.id: facts.unmerged[task.id] for task in pending}
                decided = facts.merge if facts.merge is not None and facts.merge.tasks == tuple(tasks) else None
                work = merges.Work(layer, tasks, decided, merges.choices(facts, layer))
                await mail.submit_and_wait(await files.merge(work, self._masker.text))
            else:
                await mail.submit_and_wait(await files.layer(layer, machine.facts.files))
            await self.compare_covered(covered, None)
        except Exception as error:  # noqa: BLE001 - a checkpoint waits for it: the drive must not wait for ever
            mail.lose(error)
            return
        self._at_layer_end = False
        self.look_if_wanted()

    # --- files that an approval is about ----------------------------------------------------------------------------

    async def see(self, task_id: TaskId) -> FilesSeen:
        """The files that the task's command names, as they are now."""
        from agentos.workflow.files.command_files import see_files, words_of  # most runs ask nobody

        return await in_thread(see_files, self._root, task_id, words_of(self._machine, task_id))

    async def _look_for(self, task_ids: Sequence[TaskId]) -> None:
        """Before these tasks ask or start. Gates that are due together are asked together, in the order of the plan."""
        try:
            seen = [await self.see(task_id) for task_id in task_ids]
        except Exception as error:  # noqa: BLE001 - the tasks wait for it: the drive must not wait for ever
            self._mail.lose(error)
            return
        self._looks.difference_update(task_ids)
        for one in seen:
            self._mail.submit(one)

    async def digest_covered(self) -> Digests:
        """The files behind each approval, as they are now."""
        gates = list(covering_gates(self._machine.facts)) if self._machine.facts.gates else []
        if not gates:
            return {}
        from agentos.workflow.files.command_files import digest_files, words_of

        words = {gate: words_of(self._machine, gate[1]) for gate in gates}
        return {
            gate: await in_thread(digest_files, self._root, named) for gate, named in words.items() if named is not None
        }

    async def compare_covered(self, before: Digests, task_id: TaskId | None) -> None:
        """Write down what a task of this run, or a merge, made of files behind an approval."""
        for gate, after in (await self.digest_covered()).items():
            # A gate that opened meanwhile was about the files as they were then.
            known = self._machine.facts.gates.get(gate[0])
            files = before.get(gate, known.opened.covers if known is not None else None)
            if files is not None and after != files:
                self._mail.submit(CoveredFilesChanged(gate_id=gate[0], task_id=task_id, before=files, after=after))

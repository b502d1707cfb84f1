"""Proving that tasks may be repeated: each is run three times in a scratch worktree, and the runs are compared.

    files S0 --first run--> S1 --run again, on top--> S2         idempotent:    S2 is S1, and the outputs are the same
    files S0 --run anew------------------------------> S1'       deterministic: S1' is S1, and the outputs are the same

The real engine decides what runs, in what order and with which inputs; only how an attempt is performed is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from agentos.dag.define.task import Retry, TaskDef
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.hints import Hints
from agentos.dag.plan.plan import Plan, PlannedTask, assemble_plan
from agentos.exceptions import AttemptError
from agentos.ids import TaskId, WorkflowId
from agentos.machine.facts.fold import Facts
from agentos.machine.inputs import AttemptResult, Begin
from agentos.machine.machine import Machine
from agentos.secrets import Masker
from agentos.tasks.attempt import AttemptHost, AttemptSpec, Performer
from agentos.tasks.failures import plain_failure
from agentos.tasks.runner import PERFORMERS, LocalRunner
from agentos.workflow.drive.drive import Drive
from agentos.workflow.drive.journal import MemoryJournal
from agentos.workflow.drive.patience import in_thread
from agentos.workflow.prove.run_comparison import RunDifference, TaskRun, changed_files, compare_runs
from agentos.workflow.prove.scratch_worktree import Scratch
from agentos.worktree.snapshots.snapshots import Snapshot

ProofVerdict = Literal["idempotent", "not idempotent", "not provable"]
_NAMED = 5


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one task."""

    task_id: str
    """An item of a fan-out and a later round are told each by itself."""
    verdict: ProofVerdict
    """`idempotent`: run again on top of its own result, it changed neither files nor output."""
    why: str
    """What a second run changed, or why nothing can be said; empty for `idempotent`."""
    declared: bool
    """The task says `idempotent: true`."""
    deterministic: bool | None
    """Run again from the same files and inputs, it gave the same; null where it was not run."""
    again: RunDifference | None
    """The run on top of the first one, against that one; null where there was none."""
    anew: RunDifference | None
    """The run from where the first one began, against that one; null where there was none."""
    notes: list[str]

    @property
    def broken(self) -> bool:
        """The task calls itself idempotent, and is not."""
        return self.declared and self.verdict == "not idempotent"


class ProofTargets(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be proved."""

    tasks: frozenset[TaskId]
    """Those under proof; what they need is run once."""
    assumed: Mapping[TaskId, Any]
    """Outputs to take as given, in stored form: these tasks are not run."""


async def prove(
    flow: Workflow,
    plan: Plan,
    asked: ProofTargets,
    scratch: Scratch,
    *,
    hints: Mapping[TaskId, Hints],
    masker: Masker,
    tell: Callable[[str], None],
) -> list[Proof]:
    """Run the tasks in the scratch worktree and tell of each, in plan order. Cancelling it ends what runs.

    The current directory must be the scratch worktree. Tasks that have external effects, ask somebody or are done by a
    model are not run, nor is what needs them.
    """
    prover = _Prover(plan, asked, scratch, hints, masker, tell)
    facts = Facts(workflow_id=WorkflowId(scratch.run))
    prover.drive = Drive(
        base=prover.plan,
        machine=Machine(prover.plan, facts, gates="reject", at_once=1),
        journal=MemoryJournal(),
        runner=LocalRunner(dict.fromkeys(PERFORMERS, prover.perform)),
        functions=flow.functions,
        root=scratch.root,
        masker=masker,
    )
    await prover.drive.run([Begin(holder="prove", token=0)])
    if prover.broken is not None:
        raise prover.broken
    return prover.proofs()


def tasks_needed(plan: Plan, targets: Iterable[TaskId]) -> set[TaskId]:
    """These tasks and all that has to run before them, rounds included."""
    needed: set[TaskId] = set()
    ahead = list(targets)
    while ahead:
        task_id = ahead.pop()
        if task_id not in needed:
            needed.add(task_id)
            definition = plan.tasks[task_id].definition
            ahead += definition.needs
            ahead += map(TaskId, definition.repeat.tasks) if definition.repeat is not None else ()
    return needed


def is_container(definition: TaskDef) -> bool:
    """Whether the task does nothing itself: it only stands for its rounds."""
    return definition.repeat is not None and not definition.call


class _Prover:
    def __init__(
        self,
        plan: Plan,
        asked: ProofTargets,
        scratch: Scratch,
        hints: Mapping[TaskId, Hints],
        masker: Masker,
        tell: Callable[[str], None],
    ) -> None:
        self.drive: Drive | None = None
        self.broken: Exception | None = None
        """What kept us from going on: no task's fault."""
        self._written = plan
        self.plan = _for_scratch(plan)
        self._asked = asked
        self._scratch = scratch
        self._hints = hints
        self._masker = masker
        self._tell = tell
        self._needed = tasks_needed(plan, asked.tasks)
        self._withheld: dict[TaskId, str] = {}
        """Tasks that were not run, and why."""
        self._proofs: dict[TaskId, Proof] = {}
        self._stuck = ""

    # --- attempts ------------------------------------------------------------------------------------------------

    async def perform(self, spec: AttemptSpec, host: AttemptHost) -> AttemptResult:
        """An attempt of the engine's: proved, run once, assumed, or withheld."""
        origin = self._origin(spec.task_id)
        if origin in self._asked.assumed:
            return AttemptResult(output=msgspec.Raw(msgspec.json.encode(self._asked.assumed[origin])))
        why = "" if self.broken is None else "the proof was stopped"
        if origin in self._written.tasks and origin not in self._needed:
            why = why or "it was not asked for"
        definition = self._written.tasks[origin].definition if origin in self._written.tasks else spec.definition
        if why := why or self._own_reason(definition, origin) or self._reason_of_others(spec.task_id):
            self._withheld[spec.task_id] = why
            return AttemptResult(error=plain_failure(AttemptError(why)), retryable=False)

        def note_stuck() -> None:
            self._stuck = spec.task_id

        performer, host = PERFORMERS[spec.definition.kind], _Host(host, note_stuck)
        if not self._under_proof(origin):
            self._tell(f"{spec.task_id}: run once, for what needs it")
            return replace(await performer(spec, host), retryable=False)
        self._tell(f"{spec.task_id}: run, run again, run anew")
        try:
            return replace(await self._prove_task(performer, spec, host, origin), retryable=False)
        except Exception as error:  # the engine would take it for a failure of the task
            self.broken = error
            raise

    async def _prove_task(
        self, performer: Performer, spec: AttemptSpec, host: AttemptHost, origin: TaskId
    ) -> AttemptResult:
        worktree = self._scratch.worktree
        before = await in_thread(self._scratch.take)
        first = await self._run_once(performer, spec, host)
        why = ""
        if first.outcome.error is not None:
            why = f"it failed: {self._masker.text(first.outcome.error.text)}"
        elif first.outcome.suspended:
            why = "it sleeps or waits for an answer"
        elif first.files.head != before.head:
            why = "it moved HEAD, which is an external effect that it does not declare"
        if why:
            self._note(spec, origin, "not provable", why, notes=())
            if not self._stuck:
                await in_thread(self._scratch.back_to, before)
            return first.outcome
        notes = await in_thread(self._notes_on_files, origin, before, first.files)
        later = replace(spec, attempt=spec.attempt + 1, attempt_id=f"{spec.attempt_id}+1")
        again = await self._run_once(performer, later, host)
        on_top = await in_thread(compare_runs, worktree, first, again, self._masker)
        anew: RunDifference | None = None
        if not self._stuck:
            await in_thread(self._scratch.back_to, before)
            once_more = await self._run_once(performer, spec, host)
            anew = await in_thread(compare_runs, worktree, first, once_more, self._masker)
        if not self._stuck:
            await in_thread(self._scratch.back_to, first.files)
        verdict: ProofVerdict = "idempotent"
        if on_top.any:
            verdict = "not idempotent"
            why = f"run again, {on_top.words if on_top.error else f'it changed {on_top.words}'}"
        self._note(spec, origin, verdict, why, notes=notes, again=on_top, anew=anew)
        return first.outcome

    async def _run_once(self, performer: Performer, spec: AttemptSpec, host: AttemptHost) -> TaskRun:
        outcome = await performer(spec, host)
        return TaskRun(outcome=outcome, files=await in_thread(self._scratch.take))

    def _notes_on_files(self, origin: TaskId, before: Snapshot, after: Snapshot) -> list[str]:
        notes = [f"not compared: {left.path} ({left.why})" for left in after.partial]
        effects = self._written.tasks[origin].definition.effects if origin in self._written.tasks else ("files",)
        if "files" not in effects:
            paths = [changed.path for changed in changed_files(self._scratch.worktree, before, after)]
            if paths:
                more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
                notes.append(f"changes files and does not declare it: {', '.join(paths[:_NAMED])}{more}")
        return notes

    # --- what is not run -----------------------------------------------------------------------------------------

    def _origin(self, task_id: TaskId) -> TaskId:
        """The task as it was written: that of an item, or of a later round."""
        assert self.drive is not None
        tasks = self.drive.machine.plan.tasks
        while (parent := tasks[task_id].parent) is not None and tasks[task_id].origin in ("for_each", "repeat"):
            task_id = parent
        return task_id

    def _own_reason(self, definition: TaskDef, origin: TaskId) -> str:
        """Why a task is never run; empty where it is."""
        if definition.kind == "approval":
            return "it is an approval, which needs an answer"
        if definition.external:
            return "it has external effects, and is not run"
        if definition.kind in ("agent", "llm"):
            return f"it is an {definition.kind} task: a model does not do the same twice"
        if definition.approve is not None:
            return "it asks for an approval before it runs"
        if moves_refs := self._hints.get(origin, Hints()).moves_refs:
            return f"`{moves_refs}` is an external effect that it does not declare"
        return ""

    def _reason_of_others(self, task_id: TaskId) -> str:
        if self._stuck:
            return f"a run of {self._stuck!r} could not be stopped, and may still change files"
        missing = next((need for need in self._ancestors(task_id) if need in self._withheld), None)
        return f"it needs {missing!r}, which was not run" if missing is not None else ""

    def _ancestors(self, task_id: TaskId) -> Iterable[TaskId]:
        assert self.drive is not None
        plan, facts = self.drive.machine.plan, self.drive.facts
        seen: set[TaskId] = set()
        ahead = [task_id]
        while ahead:
            for need in plan.tasks[ahead.pop()].definition.needs:
                for one in (need, *facts.children.get(need, ())):
                    if one not in seen:
                        seen.add(one)
                        yield one
                        if self._origin(one) not in self._asked.assumed:
                            ahead.append(one)

    # --- what is told --------------------------------------------------------------------------------------------

    def proofs(self) -> list[Proof]:
        """Of each task under proof, in plan order; also of those that the engine never came to."""
        assert self.drive is not None
        plan = self.drive.machine.plan
        ordered = (plan.tasks[task_id] for layer in plan.layers for task_id in layer)
        for task in ordered:
            # Of a fan-out its items are told instead.
            is_one = not is_container(task.definition) and not self.drive.facts.children.get(task.id)
            if is_one and self._under_proof(self._origin(task.id)) and task.id not in self._proofs:
                self._proofs[task.id] = self._proof_without_run(task)
        return [self._proofs[task_id] for layer in plan.layers for task_id in layer if task_id in self._proofs]

    def _under_proof(self, origin: TaskId) -> bool:
        """Tasks that another one asked for while it ran are proved like those that were written down."""
        return origin in self._asked.tasks or origin not in self._written.tasks

    def _proof_without_run(self, task: PlannedTask) -> Proof:
        origin = self._origin(task.id)
        own = self._written.tasks[origin].definition if origin in self._written.tasks else task.definition
        return Proof(
            task_id=task.id,
            verdict="not provable",
            why="its output was assumed" if origin in self._asked.assumed else self._why_not(task, origin, own),
            declared=own.idempotent == "yes",
            deterministic=None,
            again=None,
            anew=None,
            notes=[],
        )

    def _why_not(self, task: PlannedTask, origin: TaskId, own: TaskDef) -> str:
        assert self.drive is not None
        was = self.drive.facts.task(task.id)
        not_run = self._withheld.get(task.id) or self._own_reason(own, origin)
        if why := not_run or self._reason_of_others(task.id):
            return why
        if was.status == "skipped":
            failed = f"it needs {was.because!r}, which failed"
            return failed if was.because else f"its condition does not hold here: {task.definition.condition}"
        if was.error is not None:
            return f"it failed: {was.error.text}"
        return "there is no item to run it for" if task.definition.for_each is not None else "it was not run"

    def _note(
        self,
        spec: AttemptSpec,
        origin: TaskId,
        verdict: ProofVerdict,
        why: str,
        *,
        notes: Iterable[str],
        again: RunDifference | None = None,
        anew: RunDifference | None = None,
    ) -> None:
        self._proofs[spec.task_id] = Proof(
            task_id=spec.task_id,
            verdict=verdict,
            why=why,
            declared=spec.definition.idempotent == "yes",
            deterministic=not anew.any if anew is not None else None,
            again=again,
            anew=anew,
            notes=list(notes),
        )


class _Host:
    """The engine's host, which also says that a thread could not be stopped."""

    def __init__(self, host: AttemptHost, abandoned: Callable[[], None]) -> None:
        self.output = host.output
        self.child_started = host.child_started
        self.record_session = host.record_session
        self.begin_step, self.record_step = host.begin_step, host.record_step
        self.begin_sleep, self.ask = host.begin_sleep, host.ask
        self.record_usage = host.record_usage
        self.capture_turn = host.capture_turn
        self.current_tree = host.current_tree
        self.allowance = host.allowance
        self._host = host
        self._note = abandoned

    def report_abandoned(self, ended: Any) -> None:
        self._note()
        self._host.report_abandoned(ended)


def _for_scratch(plan: Plan) -> Plan:
    """The plan as it is run here: nobody is asked, nothing is tried again, and a failure does not stop the others.

    What tasks declare is looked up in the plan as written.
    """
    tasks = [
        replace(
            task,
            definition=replace(
                task.definition,
                kind="python" if task.definition.kind == "approval" else task.definition.kind,
                effects=("none",),
                approve=None,
                retry=Retry(),
                isolation="" if task.definition.isolation == "worktree" else task.definition.isolation,
            ),
        )
        for task in plan.tasks.values()
    ]
    return assemble_plan(plan.name, replace(plan.settings, decision_points="never"), plan.params, tasks)

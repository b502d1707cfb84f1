"""What a resume will keep, repeat and ask: a verdict with its reason for each task, before anything runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from agentos.dag.language.references import references_in
from agentos.dag.plan.candidates import child_id, contest_tasks
from agentos.dag.plan.checks import changes_files, references_of
from agentos.dag.plan.fingerprint import task_fingerprint
from agentos.dag.plan.plan import Plan, PlannedTask, is_left_out
from agentos.dag.plan.selection import LEFT_OUT
from agentos.exceptions import RunRefusedError
from agentos.ids import GateId, TaskId
from agentos.machine.events import PlannedVerdict, Verdict
from agentos.machine.facts.facts import FAILED, begun_steps
from agentos.machine.facts.fold import Facts, TaskFacts
from agentos.machine.facts.task_reducers import SLEEP, WAIT
from agentos.machine.frontier import fan_out_of
from agentos.machine.rules.candidates import NONE_PASSED, choose
from agentos.machine.rules.gates import newest_gate
from agentos.machine.state import SUCCEEDED

FilesAre = Literal["unknown", "untouched", "restored", "kept"]
"""What is known of the files that a cut-off task may have changed: nothing; that it had not begun; that they are put
back to what it began with; that the user wants them as they are."""

_FILES: Mapping[FilesAre, str] = {
    "unknown": "",
    "untouched": " before it touched a file",
    "restored": "; the files it began with are put back first",
    "kept": "; files stay as they are",
}

_DEFINITION = "definition"
_WORK: tuple[Verdict, ...] = ("rerun", "run", "ask", "new")
MAX_CUTS = 3
"""So many attempts in a row cut short by a dead driver, and somebody is asked before the next."""


class ResumeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked of this resume."""

    rerun: frozenset[str] = frozenset()
    """Task ids to run again; `changed` stands for every task whose definition, code or parameters changed."""
    strict: bool = False
    """Refuse any difference between the workflow and the plan last accepted."""
    missing: Mapping[TaskId, Sequence[str]] = {}
    """Finished tasks of which something they `produce` is no longer there, and what."""
    stale: Mapping[TaskId, str] = {}
    """Finished tasks whose sources are not what they were, and why each is not reused."""
    files: FilesAre = "unknown"
    restored_to: int = 0
    """Where `files` are restored: the sequence of what they are restored to; what was done to files since is undone."""
    continues: Mapping[TaskId, str] = {}
    """Tasks without a result whose agent goes on in its session, with what that means for people."""
    starts_anew: Mapping[TaskId, str] = {}
    """Those whose agent would, and why it cannot."""


class ResumePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict for each task, and what follows from it for the fold."""

    verdicts: tuple[PlannedVerdict, ...]
    reset: tuple[TaskId, ...] = ()
    cut_off: tuple[TaskId, ...] = ()
    continued: tuple[TaskId, ...] = ()
    """Of those cut off or set back: whose agent goes on in its session."""
    ask: tuple[TaskId, ...] = ()
    regrown: tuple[TaskId, ...] = ()
    undone: tuple[TaskId, ...] = ()
    """Finished tasks that run again only because what they did to files is put back with that of another."""
    steps_forgotten: tuple[TaskId, ...] = ()
    """Tasks that were asked for, or edited and asked for: they begin without the steps they had made."""
    changed: tuple[TaskId, ...] = ()
    """Tasks whose definition, code or parameters differ from the plan last accepted; items go with their fan-out."""
    sessions_forgotten: tuple[TaskId, ...] = ()
    """Tasks that wait for their next attempt and whose agent does not go on in its session."""
    revision: int = 1
    """Of the base plan this drive uses."""

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(verdict.verdict for verdict in self.verdicts))

    @property
    def has_work(self) -> bool:
        """Whether anything runs, or is asked, that has not ended for good."""
        return any(row.verdict in _WORK for row in self.verdicts)

    @property
    def noteworthy(self) -> tuple[PlannedVerdict, ...]:
        """Verdicts that say more than «kept» or «not yet run»."""
        return tuple(row for row in self.verdicts if row.verdict not in ("reuse", "run"))


def plan_resume(old: Plan, new: Plan, facts: Facts, options: ResumeOptions, *, revision: int = 1) -> ResumePlan:
    """Compare the plan last accepted with the one to use now, both with the run's own changes applied.

    RunRefusedError where `strict` forbids a difference, or `rerun` names a task that does not exist, or is left out.
    """
    unknown = [name for name in options.rerun if name != "changed" and name not in new.tasks]
    if unknown:
        named = ", ".join(name if name.isprintable() and name else repr(name) for name in sorted(unknown))
        raise RunRefusedError(
            f"cannot run again what is not in the workflow: {named}",
            next_step="`agentos resume --dry-run` lists its tasks; `--rerun changed` means all that were edited.",
        )
    judge = _Judge(old, new, facts, options)
    left_out = sorted(name for name in options.rerun if name != "changed" and judge.leaves_out(TaskId(name)))
    if left_out:
        raise RunRefusedError(
            f"cannot run again what is not selected ({new.selection}): {', '.join(left_out)}",
            next_step="Nothing was run. `--all-tasks` runs also what is not selected; `agentos run FILE --id "
            f"{shlex.quote(facts.workflow_id)} --only {shlex.quote(left_out[0])}` that task alone.",
        )
    for task in _in_order(new):
        judge.consider(task)
    judge.orphans()
    if options.strict and judge.differences:
        raise RunRefusedError(
            f"the workflow of run {facts.workflow_id} differs from the plan last accepted: "
            f"{'; '.join(judge.differences)}",
            next_step="Resume without --strict to go on with the workflow as it is now.",
        )
    return judge.plan(revision)


def plan_follow_up(plan: Plan, facts: Facts, changed: TaskId) -> ResumePlan:
    """What follows where a task that was set back has ended otherwise than before: those that used it run again.

    Looks at the dependants alone; what depends on them follows when they have ended otherwise too.
    """
    judge = _Judge(plan, plan, facts, ResumeOptions())
    for task in _dependants(plan, changed):
        judge.follow(task, f"{changed} ran again with another result")
    judge.follow_skipped()
    return judge.plan(facts.plan_revision)


def plan_stale(plan: Plan, facts: Facts, changed: TaskId, stale: Mapping[TaskId, str]) -> ResumePlan:
    """What follows where a task changed files: the `stale` ones that come after it run again, where they have ended."""
    judge = _Judge(plan, plan, facts, ResumeOptions())
    for task in tasks_after(plan, changed):
        if task.id in stale and facts.task(task.id).status in SUCCEEDED:
            judge.follow(task, stale[task.id])
    judge.follow_skipped()
    return judge.plan(facts.plan_revision)


def tasks_after(plan: Plan, task_id: TaskId) -> list[PlannedTask]:
    """All that depends on a task, itself or through others, in plan order."""
    found: dict[TaskId, PlannedTask] = {}
    ahead = [task_id, fan_out_of(plan.tasks[task_id]) or task_id]
    while ahead:
        for task in _dependants(plan, ahead.pop()):
            if task.id not in found:
                found[task.id] = task
                ahead.append(task.id)
    return sorted(found.values(), key=lambda task: (task.layer, task.place))


def plan_repeat(plan: Plan, facts: Facts, outdated: TaskId) -> ResumePlan:
    """What follows where a task has ended that was given what no longer holds."""
    judge = _Judge(plan, plan, facts, ResumeOptions())
    judge.rerun(plan.tasks[outdated], "a need of it ran again with another result while it was under way")
    judge.follow_skipped()
    return judge.plan(facts.plan_revision)


def _in_order(plan: Plan) -> Iterable[PlannedTask]:
    for layer in plan.layers:
        for task_id in layer:
            yield plan.tasks[task_id]


def _dependants(plan: Plan, task_id: TaskId) -> list[PlannedTask]:
    """In plan order, so that a fan-out comes before its items."""
    tasks = [plan.tasks[name] for name in plan.dependants.get(task_id, ())]
    return sorted(tasks, key=lambda task: (task.layer, task.place))


class _Judge:
    """Goes through the plan in order, so that what a task needs has its verdict before the task."""

    def __init__(self, old: Plan, new: Plan, facts: Facts, options: ResumeOptions) -> None:
        self.old, self.new, self.facts, self.options = old, new, facts, options
        self.verdicts: list[PlannedVerdict] = []
        self.reset: dict[TaskId, None] = {}
        self.cut_off: list[TaskId] = []
        self.continued: list[TaskId] = []
        self.ask: list[TaskId] = []
        self.regrown: dict[TaskId, None] = {}
        self.outdated: set[TaskId] = set()
        self.undone: list[TaskId] = []
        self.steps_forgotten: list[TaskId] = []
        self.changed: dict[TaskId, None] = {}
        self.sessions_forgotten: list[TaskId] = []
        self.differences: list[str] = []
        self.selected = new.selected_tasks()

    def plan(self, revision: int) -> ResumePlan:
        return ResumePlan(
            verdicts=tuple(self.verdicts),
            reset=tuple(self.reset),
            cut_off=tuple(self.cut_off),
            continued=tuple(self.continued),
            ask=tuple(self.ask),
            regrown=tuple(self.regrown),
            undone=tuple(self.undone),
            steps_forgotten=tuple(self.steps_forgotten),
            changed=tuple(self.changed),
            sessions_forgotten=tuple(self.sessions_forgotten),
            revision=revision,
        )

    def leaves_out(self, task_id: TaskId) -> bool:
        return is_left_out(self.new.tasks[task_id], self.selected)

    def consider(self, task: PlannedTask) -> None:
        was = self.facts.task(task.id)
        known = self.old.tasks.get(task.id)
        changed = changed_part(self.old, self.new, task)
        if changed:
            self.differences.append(f"{task.id} is new" if known is None else f"{task.id} changed")
            if known is not None and fan_out_of(task) not in self.changed:
                self.changed[task.id] = None
        left_out = is_left_out(task, self.selected)
        asked_for = task.id in self.options.rerun or (changed and "changed" in self.options.rerun)
        if (was.steps or was.pending) and ((asked_for and not left_out) or self._are_steps_undone(was)):
            self.steps_forgotten.append(task.id)
        if not left_out:
            self._judge(task, was, changed=changed)
        elif was.ended and not self._is_undone(task, was):
            self._add_verdict(task, "reuse", left_out_reason(self.new, was, stays=True))
        else:
            # Whatever becomes of an attempt that was interrupted: it is told when the task is selected again.
            told = len(self.verdicts)
            self._judge(task, was, changed=changed)
            del self.verdicts[told:]
            self._add_verdict(task, "reuse", left_out_reason(self.new, was, stays=False))

    def _judge(self, task: PlannedTask, was: TaskFacts, *, changed: str) -> None:
        known = self.old.tasks.get(task.id)
        if fan_out_of(task) in self.regrown:
            self.cut_off += [task.id] if task.id in self.facts.running else []
            if task.id not in self.ask:
                self._add_verdict(task, "rerun", f"the list of {task.parent} is made anew")
            return
        if known is None and was.status == "pending" and not was.attempts:
            self._add_verdict(task, "new", "added to the workflow since")
        elif self._forgets_effects(task, was):
            self.reset[task.id] = None
            self._ask(task, "begins anew, but steps that it has made may not be repeated unasked")
        elif was.status in SUCCEEDED:
            self._judge_finished(task, was, changed=changed)
        elif was.status in FAILED:
            self._judge_failed(task, was, changed=changed)
        elif was.status == "skipped":
            self._judge_skipped(task, was, changed=changed)
        elif task.id in self.facts.running:
            self._judge_cut_off(task, was, changed=changed)
        elif task.id in self.facts.children and (reason := self._reason_to_expand_again(task)):
            self.rerun(task, reason)
        else:
            self._judge_not_run(task, was, changed=changed)

    def orphans(self) -> None:
        for task in _in_order(self.old):
            if task.id not in self.new.tasks:
                self.differences.append(f"{task.id} is gone")
                self._add_verdict(task, "orphan", "no longer in the workflow; not run")
        self.cut_off += sorted(task_id for task_id in self.facts.running if task_id not in self.new.tasks)

    def follow(self, task: PlannedTask, reason: str) -> None:
        """The task used a result that is another one now."""
        if fan_out_of(task) in self.regrown or fan_out_of(task) in self.outdated:
            return
        was, children = self.facts.task(task.id), self.facts.children.get(task.id, ())
        if task.id in self.facts.running or any(child in self.facts.running for child in children):
            self.outdated.add(task.id)
            self.reset[task.id] = None
            self._add_verdict(task, "rerun", f"{reason} while it was under way")
        elif was.status in SUCCEEDED or children:
            self.rerun(task, reason)
        elif was.status in FAILED and not _was_rejected(was):
            self.reset[task.id] = None
            self._add_verdict(task, "rerun", reason)

    def follow_skipped(self) -> None:
        """A skipped task never stands behind one that is to run: it is decided anew."""
        ahead = [task_id for task_id in self.reset if task_id not in self.outdated]
        while ahead:
            for task in _dependants(self.new, ahead.pop()):
                was = self.facts.task(task.id)
                if was.status == "skipped" and task.id not in self.reset and fan_out_of(task) not in self.regrown:
                    self._judge_skipped(task, was)
                    ahead += [task.id] if task.id in self.reset else []

    def rerun(self, task: PlannedTask, reason: str, *, undone: bool = False) -> None:
        """The task has ended and is to run again; a fan-out from its list on. `undone`: its files are put back."""
        self.reset[task.id] = None
        parent = fan_out_of(task)
        if parent is not None and self.facts.task(parent).ended:
            self.reset[parent] = None  # keeps its list, and gathers the results anew
        # Who names sources wants it to run again once they change: what it did to files then is no reason to ask.
        repeatable = bool(task.definition.sources) and not task.definition.external
        asks = self._asks_before_repeating(task, undone=undone) and not repeatable
        if asks and self._has_run(task):
            self._ask(task, f"{reason}, but its effect may not be repeated unasked")
            return
        self._add_verdict(task, "rerun", reason)
        if task.id in self.facts.children:
            self.regrown[task.id] = None
        for child in self.facts.children.get(task.id, ()):
            child_ran = child in self.new.tasks and self._has_run(self.new.tasks[child])
            if child_ran and needs_answer(task) and not repeatable:
                self._ask(self.new.tasks[child], f"{reason}, but its effect may not be repeated unasked")

    # --- one by one ----------------------------------------------------------------------------------------------

    def _add_verdict(self, task: PlannedTask, verdict: Verdict, reason: str) -> None:
        self.verdicts.append(PlannedVerdict(task_id=task.id, verdict=verdict, reason=reason))

    def _ask(self, task: PlannedTask, reason: str) -> None:
        self.ask.append(task.id)
        self._add_verdict(task, "ask", reason)

    def _judge_finished(self, task: PlannedTask, was: TaskFacts, *, changed: str) -> None:
        if self._is_undone(task, was):
            self.undone.append(task.id)
            self.rerun(task, "what it did to files is undone", undone=True)
            return
        if self._took_files(task) and self.options.files == "restored" and was.seq > self.options.restored_to:
            self.reset[task.id] = None  # its candidates are kept, and the winner's files with them
            self._add_verdict(task, "rerun", "what its winner did to files is undone, and merged once more")
            return
        again = self._reason_to_repeat(task, changed=changed)
        items = self.facts.children.get(task.id, ())
        reasons = ((item, self._reason_to_repeat(self.new.tasks[item])) for item in items if item in self.new.tasks)
        item_again = next((f"{item}: {reason}" for item, reason in reasons if reason), "")
        if item_again and not again and (whole := self._reason_to_expand_again(task)):
            again = f"{item_again}; {whole}"
        if again:
            self.rerun(task, again)
        elif item_again:
            self.reset[task.id] = None
            self._add_verdict(task, "rerun", "an item of it runs again")
        elif changed:
            compared = "definition and code" if changed == _DEFINITION and task.definition.code else changed
            self._add_verdict(
                task, "reuse, changed", f"finished, but its {compared} changed since; --rerun changed runs it"
            )
        else:
            self._add_verdict(task, "reuse", finished_reason(task))

    def _reason_to_expand_again(self, task: PlannedTask) -> str:
        if task.definition.candidates:
            children = tuple(one.id for one in contest_tasks(task.definition))
            if self.facts.children.get(task.id) not in (None, children):
                return "its candidates are others now"
            was = self.facts.task(task.id)
            if was.error is not None and was.error.type == NONE_PASSED:
                return "no candidate passed"
            if was.status == "complete" and self._took_files(task):
                return "what its winner did is in the files already"
        elif task.definition.for_each is None:
            return "it is no fan-out any more"
        if task.definition.approve is None:
            return ""
        gate, _ = newest_gate(self.facts, "approve", task.id, task.id)
        return "" if gate is not None and gate.answer == "approved" else "its approval does not carry over"

    def _reason_to_repeat(self, task: PlannedTask, *, changed: str = "") -> str:
        if task.id in self.options.rerun:
            return "asked for"
        if changed and "changed" in self.options.rerun:
            return f"its {'definition or code' if changed == _DEFINITION else changed} changed"
        if task.id in self.options.missing:
            return f"something it produces is gone ({', '.join(self.options.missing[task.id])})"
        return self.options.stale.get(task.id, "")

    def _judge_failed(self, task: PlannedTask, was: TaskFacts, *, changed: str) -> None:
        if _was_rejected(was):
            self._add_verdict(task, "reuse", "rejected at its gate; a fork asks anew")
            return
        if self.facts.refused is not None and task.id not in self.options.rerun:
            self._add_verdict(
                task, "reuse", f"failed; the run was rejected at {self.facts.refused.gate_id}, a fork asks anew"
            )
            return
        anew = "asked for" if task.id in self.options.rerun else self._reason_to_expand_again(task)
        if anew and task.id in self.facts.children:
            self.rerun(task, anew)
            return
        self.reset[task.id] = None
        half_done = self.facts.half_done is not None and task.id in self.facts.half_done.tasks
        undone = not half_done or self.options.files in ("restored", "kept")
        if was.status == "cancelled" and was.attempts and self._asks_about_cut_off(task, was, undone=undone):
            self._ask(task, "was cancelled while its effect was under way")
        elif _ran_out_of_time(was) and leaves_effect_unknown(task, was):
            self._ask(task, "ran out of time while an external effect that is not idempotent was under way")
        else:
            how = _FILES[self.options.files] if half_done else ""
            if task.id in self.options.continues:
                self.continued.append(task.id)
                how = f"; {self.options.continues[task.id]}"
            elif task.id in self.options.starts_anew:
                how = f"; {self.options.starts_anew[task.id]}"
            self._add_verdict(
                task, "rerun", f"{'failed' if was.status == 'failed' else 'was cancelled'}{how}{_edit_note(changed)}"
            )

    def _judge_skipped(self, task: PlannedTask, was: TaskFacts, *, changed: str = "") -> None:
        if was.because.startswith(LEFT_OUT):
            if is_left_out(task, self.selected):
                return  # in the middle of a drive: nothing about that changes
            self.reset[task.id] = None
            if task.id in self.facts.ask:
                self._add_verdict(task, "ask", f"its effect may have happened ({self.facts.ask[task.id]})")
                return
            goes_on = self.options.continues.get(task.id, "")
            self.continued += [task.id] if goes_on else []
            how = f"; {goes_on}" if goes_on else ""
            self._add_verdict(task, "run", f"{skipped_reason(was)}{how}{_edit_note(changed)}")
            return
        cause = f"because of {was.because}" if was.because else "by its condition"
        somebody_said_so = was.because.startswith(SKIP_LAYER) or GateId(was.because) in self.facts.gates
        causes = [need for need in (*task.definition.needs, TaskId(was.because)) if need in self.new.tasks]
        anew = any(need in self.reset or not self.facts.task(need).ended for need in causes)
        if changed and not was.because and not anew:
            anew = "changed" in self.options.rerun
            if not anew:
                self._add_verdict(
                    task, "reuse, changed", f"skipped {cause}, but its {changed} changed since; --rerun changed decides"
                )
                return
        if somebody_said_so or not anew:
            self._add_verdict(task, "reuse", f"skipped {cause}")
        else:
            self.reset[task.id] = None
            self._add_verdict(task, "run", skipped_reason(was))

    def _judge_cut_off(self, task: PlannedTask, was: TaskFacts, *, changed: str) -> None:
        self.cut_off.append(task.id)
        if self._asks_about_cut_off(task, was, undone=self.options.files != "unknown"):
            began = "it changed files, which cannot be put back without a snapshot"
            if task.definition.external:
                began = "an external effect that is not idempotent was under way"
            self._ask(task, f"was interrupted while {began}")
        elif was.cuts + 1 >= MAX_CUTS:
            self._ask(task, f"was interrupted {was.cuts + 1} times in a row")
        elif task.id in self.options.continues:
            self.continued.append(task.id)
            self._add_verdict(
                task, "rerun", f"was interrupted; {self.options.continues[task.id]}" + _edit_note(changed)
            )
        elif task.id in self.options.starts_anew:
            self._add_verdict(
                task, "rerun", f"was interrupted; {self.options.starts_anew[task.id]}" + _edit_note(changed)
            )
        else:
            how = _FILES[self.options.files] if changes_files(task.definition) else ""
            if was.steps and task.id not in self.steps_forgotten:
                if was.files_seq and self.options.files == "restored":
                    how = "; the files after its last step are put back first"
                how += f"; {_steps_reason(was)}"
            self._add_verdict(task, "rerun", f"was interrupted{how}" + _edit_note(changed))

    def _are_steps_undone(self, was: TaskFacts) -> bool:
        """Whether putting the files back takes away what steps of a task did to them."""
        return self.options.files == "restored" and self.options.restored_to < was.files_seq

    def _forgets_effects(self, task: PlannedTask, was: TaskFacts) -> bool:
        """Whether a task that nobody interrupted begins without steps that had an effect. A step itself is asked about
        first, where somebody is."""
        if task.id not in self.steps_forgotten or task.id in self.facts.running or task.id in self.facts.ask:
            return False
        made = any(step.name not in (SLEEP, WAIT) for step in was.steps)
        return made and may_have_happened(task) and not _was_rejected(was)

    def _is_undone(self, task: PlannedTask, was: TaskFacts) -> bool:
        """Whether putting the files back takes away what this finished task did to them."""
        undone = self.options.files == "restored" and was.seq > self.options.restored_to
        kept_aside = task.id in self.facts.unmerged or task.id in self.facts.candidates
        isolated = task.definition.isolation == "worktree" and not kept_aside
        half_done = self.facts.half_done
        points = (self.facts.files, half_done.before if half_done is not None else None)
        known = [point for point in points if point is not None and point.seq == self.options.restored_to]
        # It left the files as they were at the point they are put back to; of no other is that known.
        kept = any((task.id, was.attempts) in point.kept for point in known)
        changed = isolated or (changes_files(task.definition) and not kept)
        return undone and bool(was.attempts) and changed

    def _took_files(self, task: PlannedTask) -> bool:
        """Whether the task's own files are those of a candidate that won, and they were merged."""
        if not task.definition.candidates or task.id in self.facts.unmerged:
            return False
        won = choose(self.facts, task.id)
        return won is not None and child_id(task.id, won.key) in self.facts.candidates

    def _asks_before_repeating(self, task: PlannedTask, *, undone: bool) -> bool:
        """Whether repeating it needs an answer; `undone`: its files are those it began with."""
        return needs_answer(task) and not (undone and not task.definition.external)

    def _has_run(self, task: PlannedTask) -> bool:
        """Whether anything was done for it; in a fork that may have been its parent, which counts no attempt here."""
        was, definition = self.facts.task(task.id), task.definition
        does_nothing = definition.kind == "approval" or definition.fans_out or definition.repeat is not None
        return bool(was.attempts) or (was.status in SUCCEEDED and not does_nothing)

    def _asks_about_cut_off(self, task: PlannedTask, was: TaskFacts, *, undone: bool) -> bool:
        """The same of an attempt that did not end by itself; steps that it has made are not repeated anyway."""
        if task.id in self.steps_forgotten or not task.definition.external:
            return self._asks_before_repeating(task, undone=undone)
        return leaves_effect_unknown(task, was)

    def _judge_not_run(self, task: PlannedTask, was: TaskFacts, *, changed: str) -> None:
        if task.id in self.facts.ask:
            self._add_verdict(task, "ask", f"its effect may have happened ({self.facts.ask[task.id]})")
            return
        if was.status == "retrying" and _ran_out_of_time(was) and leaves_effect_unknown(task, was):
            self.reset[task.id] = None
            self._ask(task, "ran out of time while an external effect that is not idempotent was under way")
            return
        reason = unfinished_reason(was)
        if task.id in self.facts.sessions and task.id not in self.options.continues:
            self.sessions_forgotten.append(task.id)
        if task.id in self.options.continues:
            reason += f"; {self.options.continues[task.id]}"
        elif self.facts.half_done is not None and task.id in self.facts.half_done.tasks:
            reason += _FILES[self.options.files]
        if task.id in self.facts.children:
            parts = "candidates" if task.definition.candidates else "items"
            reason = f"its {parts} are looked at one by one"
        self._add_verdict(task, "run", reason + _edit_note(changed))


def changed_part(old: Plan, new: Plan, task: PlannedTask) -> str:
    """What of the task is not as it was: its `definition`, or the `parameter 'x'` it refers to; empty: nothing."""
    known = old.tasks.get(task.id)
    if known is None or known.fingerprint != task.fingerprint:
        return _DEFINITION
    return _changed_parameter(old, new, task)


def _changed_parameter(old: Plan, new: Plan, task: PlannedTask) -> str:
    if old.params == new.params:
        return ""
    names = sorted(name for name in {*old.params, *new.params} if old.params.get(name) != new.params.get(name))
    # What every task has in its environment counts as if each said it.
    references = [one for _, one in references_of(task.definition, task.definition.inputs, [])]
    taken = [one.path[1:2] for one in (*references, *references_in(new.settings.env)) if one.root == "params"]
    return next((f"parameter {name!r}" for name in names if () in taken or (name,) in taken), "")


def finished_reason(task: PlannedTask) -> str:
    """Why a finished task is reused: what was compared."""
    return f"finished, {'definition and sources' if task.definition.sources else 'definition'} unchanged"


def left_out_reason(plan: Plan, was: TaskFacts, *, stays: bool) -> str:
    """What becomes of a task that is not selected; `stays`: it has ended, and nothing of it is undone."""
    return f"not selected; it stays {was.status}" if stays else f"not selected ({plan.selection}): skipped"


def skipped_reason(was: TaskFacts) -> str:
    """Why a task that was skipped is looked at again."""
    if was.because.startswith(LEFT_OUT):
        return "was not selected before"
    return f"was skipped {f'because of {was.because}' if was.because else 'by its condition'}, which is decided anew"


def unfinished_reason(was: TaskFacts) -> str:
    """How a task stands that has not ended, and that nothing keeps from going on."""
    if was.suspended and (until := was.sleeps_until) is not None:
        return f"sleeps until {until:%Y-%m-%d %H:%M:%S} UTC"
    if was.status == "retrying" and was.limit == "wait" and was.not_before is not None:
        return f"waits for the end of a limit, until {was.not_before:%Y-%m-%d %H:%M:%S} UTC"
    if was.steps and was.status == "pending":
        return _steps_reason(was)
    return {"waiting": "waits at its gate", "retrying": "waits for its next attempt"}.get(was.status, "not yet run")


def _steps_reason(was: TaskFacts) -> str:
    return f"goes on after {len(was.steps)} step{'s' * (len(was.steps) > 1)}"


def _edit_note(changed: str) -> str:
    return f"; its {changed} changed since" if changed else ""


SKIP_LAYER = "skip_layer "
"""What `because` begins with where a command skipped the task."""


def _was_rejected(was: TaskFacts) -> bool:
    return was.error is not None and was.error.type == "GateRejected"


def _ran_out_of_time(was: TaskFacts) -> bool:
    """In a journal from before such tasks were asked about at once, or of a task that was no external one then."""
    return was.error is not None and was.error.type == "TaskTimeoutError"


def may_have_happened(task: PlannedTask) -> bool:
    """Whether an attempt that did not end by itself may have had an external effect, which must not happen twice."""
    return task.definition.external and task.definition.idempotent == "no"


def leaves_effect_unknown(task: PlannedTask, was: TaskFacts) -> bool:
    """Whether somebody has to say what became of the effect of an attempt that did not end by itself.

    Where its function makes steps, its effects are theirs: only a step that had begun is asked about.
    """
    makes_steps = bool(was.steps or was.pending)
    return may_have_happened(task) and (not makes_steps or bool(begun_steps(was)))


def needs_answer(task: PlannedTask) -> bool:
    """Whether an attempt that began may not simply be repeated."""
    definition = task.definition
    return definition.idempotent == "no" and (definition.external or changes_files(definition))


def goes_on_unasked(old: Plan, new: Plan, task: PlannedTask, facts: Facts) -> bool:
    """Whether a task without a result may take up its work where it left it: the same work, and nobody is asked."""
    known = old.tasks.get(task.id)
    if known is None or session_fingerprint(known) != session_fingerprint(task) or _changed_parameter(old, new, task):
        return False
    cuts = facts.task(task.id).cuts + (task.id in facts.running)
    return cuts < MAX_CUTS and not (needs_answer(task) and task.definition.external)


def session_fingerprint(task: PlannedTask) -> str:
    """What a session of the task's agent is about: all that counts of the task but for the number of turns."""
    work = task.definition.agent
    if work is None or work.max_turns is None:
        return task.fingerprint
    bare = msgspec.structs.replace(work, max_turns=None)
    return task_fingerprint(msgspec.structs.replace(task.definition, agent=bare))

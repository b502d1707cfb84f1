"""What was verified before a gate: by which commands, on which files, and what of that is stale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.excerpts import list_some
from agentos.ids import TaskId
from agentos.machine.events import ShownCheck, Verification, VerifyCheck
from agentos.machine.facts.fold import Facts
from agentos.machine.rules.candidates import is_judge
from agentos.machine.rules.scope import newest_round

_SAID = 300
"""Characters of what a command printed that a gate shows: the last ones."""


def find_verifications(plan: Plan, facts: Facts, task: PlannedTask) -> dict[TaskId, Verification]:
    """By what the tasks were verified that this one needs, directly or not; of rounds the newest, of items all,
    of candidates the winner."""
    found: dict[TaskId, Verification] = {}
    if is_judge(plan, task):  # the table of those it judges says who passed
        return found
    left, seen = list(task.definition.needs), set[TaskId]()
    while left:
        task_id = newest_round(plan, facts, left.pop())
        if task_id in seen:
            continue
        seen.add(task_id)
        verified = facts.task(task_id).verified
        if verified is not None and facts.task(task_id).ended:
            found[task_id] = verified
        needed = plan.tasks.get(task_id)
        if needed is None or not needed.definition.candidates:  # of several the winner's is that of the task
            left += facts.children.get(task_id, ())
        if needed is not None:
            left += needed.definition.needs
    in_order = sorted(found, key=lambda task_id: (facts.task(task_id).layer, facts.task(task_id).place, task_id))
    return {task_id: found[task_id] for task_id in in_order}


def verified_trees(plan: Plan, facts: Facts, task: PlannedTask) -> frozenset[str]:
    """The files that its own question shows something about: where there are any, an approval is about all files."""
    if task.definition.approve is None:
        return frozenset()
    return frozenset(verified.tree for verified in find_verifications(plan, facts, task).values()) - {""}


def shown_checks(
    plan: Plan, facts: Facts, task: PlannedTask, since: Mapping[str, Sequence[str]]
) -> tuple[ShownCheck, ...]:
    """What the task's own question shows of them. `since`: by tree, the paths that differ now."""
    if task.definition.approve is None:
        return ()
    before = find_verifications(plan, facts, task).items()
    return tuple(shown for task_id, verified in before for shown in _checks(task_id, verified, since))


def are_shown(shown: Sequence[ShownCheck], now: Sequence[ShownCheck]) -> bool:
    """Whether a question shows what was verified last, whatever has become of the files since."""
    return [_identity(one) for one in shown] == [_identity(one) for one in now]


def _identity(shown: ShownCheck) -> tuple[str, str, int | None, str]:
    return shown.task_id, shown.command, shown.exit_code, shown.tree


def _checks(task_id: TaskId, verified: Verification, since: Mapping[str, Sequence[str]]) -> Iterator[ShownCheck]:
    for check in verified.checks:
        yield ShownCheck(
            task_id=task_id,
            command=check.command,
            exit_code=check.exit_code,
            said=check.said[-_SAID:],
            tree=check.tree,
            stale=_staleness(check, verified, since),
        )
    for command in verified.not_run:
        yield ShownCheck(task_id=task_id, command=command, stale="not run, since one before it failed")


def _staleness(check: VerifyCheck, verified: Verification, since: Mapping[str, Sequence[str]]) -> str:
    if not check.tree or not verified.tree:
        return f"which files it saw is not known{f': {verified.unknown}' if verified.unknown else ''}"
    if check.tree != verified.tree:
        return "a command of `verify` after it changed files"
    changed = since.get(check.tree)
    if changed is None:
        return "the files cannot be compared with those it saw"
    return f"changed since: {list_some(changed)}" if changed else ""

"""Gates: their names, and when one lets through what it guards. Only an explicit approval does, and it holds for
what was shown: also for files that the words of a command name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from agentos.dag.define.model_calls import verify_commands
from agentos.dag.define.task import Approve, TaskDef, resolve_items
from agentos.dag.language.references import SECRETS, as_text, look_up, references_in, resolve
from agentos.dag.plan.candidates import CANDIDATES, contest_tasks, key_of
from agentos.dag.plan.findings import Finding
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.exceptions import AgentosError, CommandRefusedError, WorkflowDefinitionError
from agentos.ids import GateId, TaskId, short_id
from agentos.machine import events as ev
from agentos.machine.commands import EFFECT_ANSWERS, IT_RAN, LIMIT_ANSWERS
from agentos.machine.facts.facts import begun_steps
from agentos.machine.facts.fold import Facts, GateFacts
from agentos.machine.frontier import fan_out_of
from agentos.machine.rules.candidates import contest_of, is_judge, list_passed
from agentos.machine.rules.scope import scope_of, shown_digest
from agentos.machine.rules.verification import are_shown, shown_checks, verified_trees

# Texts, which `re` compiles when they are first used: most runs ask nobody.
_WRITTEN_TO = r"[0-9&]*>[>|]?\s*[^\s;|&()<>]+"
"""A redirection: what it names is written, not run."""
_VARIABLE = r"\$\{?\w+\}?/?"
"""What a shell puts there is not known; what follows it may still name a file."""
_BETWEEN_WORDS = r"[\s;|&()<>\"'`$]+"
_INSIDE_A_WORD = r"[=:,@{}]+"
_LONGEST = 4096
_LONGEST_QUOTED = 16 * 1024
"""The time that shlex takes for a word grows with the square of its length, and an output may be one of megabytes."""


class CommandWords(msgspec.Struct, frozen=True, kw_only=True):
    """Where a command runs, relative to the root, and what may name files in it."""

    cwd: str
    words: frozenset[str]
    verified: frozenset[str] = frozenset()
    """Trees that tasks before it were verified on. Where there are any, an approval is about all files, too."""
    printed_to: frozenset[str] = frozenset()
    """Files that drives print to: they differ all the time."""
    looked_at: str = ""
    """The file that the question asks to look at, and perhaps to edit."""


def has_command(definition: TaskDef) -> bool:
    """Whether the task runs a command that its author wrote."""
    return any(_commands(definition))


def command_words(plan: Plan, facts: Facts, task: PlannedTask) -> CommandWords:
    """Every word of the task's commands, references looked up; of a fan-out those of all its items.

    EvaluationError where a reference leads nowhere.
    """
    definition = task.definition
    scope = scope_of(plan, facts, task)
    scopes: list[Mapping[str, Any]] = [scope]
    if definition.for_each is not None:
        scopes = [{**scope, definition.for_each.as_: item} for item in resolve_items(definition, scope)]
    words: set[str] = set()
    for one in scopes:
        for command in _commands(definition):
            # Rather too many than too few: a word that names no file does no harm.
            refs = references_in(command)
            known = all(ref.root != CANDIDATES or CANDIDATES in one for ref in refs)  # not before there are any
            values = [look_up(ref, one) for ref in refs if ref.root != SECRETS] if known else []
            written = [command] if isinstance(command, str) else _texts(resolve(command, one) if known else command)
            words.update(word for text in (*_texts(values), *written) for word in words_in(text))
    cwd = definition.cwd if references_in(definition.cwd) and definition.for_each else resolve(definition.cwd, scope)
    looked_at = as_text(resolve(definition.approve.file, scope)) if definition.approve is not None else ""
    return CommandWords(
        cwd=as_text(cwd),
        words=frozenset(word for word in words if 0 < len(word) < _LONGEST and "\0" not in word),
        verified=verified_trees(plan, facts, task),
        printed_to=frozenset(facts.own_output),
        looked_at=looked_at,
    )


def _commands(definition: TaskDef) -> Iterator[str | tuple[str, ...]]:
    if definition.run:
        yield definition.run
    if definition.agent is not None:
        yield from filter(None, (*verify_commands(definition.agent), definition.agent.command))
    if definition.candidates:
        yield from (command for child in contest_tasks(definition) for command in _commands(child))


def words_in(text: str) -> Iterator[str]:
    """What may name a file in a command, or in one argument of it, which may be a script."""
    yield text
    read = re.sub(_WRITTEN_TO, " ", text)
    for part in [read] if len(read) <= _LONGEST_QUOTED else read.splitlines():
        if len(part) <= _LONGEST_QUOTED:
            with suppress(ValueError):  # quotes that do not end: no shell would take it
                yield from shlex.split(part)  # so that a name may hold blanks
    for word in re.split(_BETWEEN_WORDS, re.sub(_VARIABLE, " ", read)):
        yield word
        yield from re.split(_INSIDE_A_WORD, word)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    else:
        yield as_text(value)


def gate_name(facts: Facts, kind: ev.GateKind, subject: str, number: int) -> GateId:
    """`approve:ship`, then `approve:ship#2`; in a later epoch `approve:ship~1`."""
    epoch = f"~{facts.epoch}" if facts.epoch else ""
    again = f"#{number}" if number > 1 else ""
    return GateId(f"{kind}:{subject}{epoch}{again}")


def newest_gate(
    facts: Facts, kind: ev.GateKind, subject: str, task_id: TaskId | None = None
) -> tuple[GateFacts | None, GateId]:
    """The newest gate before this subject in this epoch, if any, and the name the next one would have.

    No answer fits two gates: a name that was ever used, if only because a task is called `ship#2`, is not used again.
    """
    number, newest = 1, None
    while (gate := facts.gates.get(name := gate_name(facts, kind, subject, number))) is not None:
        if gate.opened.task_id == task_id:
            newest = gate
        number += 1
    return newest, name


def task_gate(
    plan: Plan,
    facts: Facts,
    task: PlannedTask,
    now: datetime,
    files: dict[str, str] | None = None,
    since: Mapping[str, Sequence[str]] = {},
) -> tuple[bool, ev.DecisionRequired | None]:
    """Whether the task may start, and else the gate to open first (None where it is open already, or answered no).

    `files` are those that it is about as they are now, None where it is about none; `since` as of `shown_checks`.
    """
    approve = task.definition.approve or approval_of(plan, task)
    if approve is None:
        return True, None
    if (above := contest_of(plan, task)) is not None and is_judge(plan, task):
        keys = tuple(key_of(above.id, child) for child in list_passed(facts, above.id))
        approve = msgspec.structs.replace(approve, choices=keys)
    kind = gate_kind(task)
    gate, next_name = newest_gate(facts, kind, task.id, task.id)
    is_open = gate is not None and gate.opened.gate_id in facts.open_gates
    if gate is not None and is_open and not is_outdated(plan, facts, task, gate):
        return False, None
    digest, text = shown_digest(plan, facts, task)
    verified = shown_checks(plan, facts, task, since)
    again, changed = "", tuple[str, ...]()
    if gate is not None and (is_open or (gate.answer and _shows(gate, digest, verified))):
        again, changed = _reopening(gate, files)
        if approve.by == "signed" and gate.answer == "approved" and gate.signed is None:  # a row that we did not write
            again = f"{gate.opened.gate_id} was approved without a signature"
        if not is_open and (gate.answer != "approved" or not again):
            return gate.answer == "approved", None
    elif gate is None and task.definition.approve is None:  # an item, whose fan-out was approved
        again, changed = _reopening(approving_gate(facts, task), files, among=True)
        if not again:
            return True, None
    scope = scope_of(plan, facts, task)
    return False, ev.DecisionRequired(
        gate_id=next_name,
        kind=kind,
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=as_text(resolve(approve.question, scope)),
        choices=approve.choices,
        file=as_text(resolve(approve.file, scope)),
        by=approve.by,
        shown=digest,
        inputs=text,
        covers=files,
        again=again,
        changed=changed,
        verified=verified,
        command=answer_command(facts.workflow_id, next_name, approve.choices, signed=approve.by == "signed"),
        deadline=None if approve.timeout_s is None else now + timedelta(seconds=approve.timeout_s),
        on_timeout=approve.on_timeout,
    )


def approval_of(plan: Plan, task: PlannedTask) -> Approve | None:
    """What must be approved before the task runs its command: its own question, or that of the fan-out it came from."""
    definition, parent = task.definition, fan_out_of(task)
    approve = definition.approve
    if approve is None and parent is not None:
        approve = plan.tasks[parent].definition.approve
    return approve if approve is not None and has_command(definition) else None


def changed_files(
    covers: Mapping[str, tuple[str, ...]], files: Mapping[str, str], *, among: bool = False
) -> tuple[str, ...]:
    """Paths that differ from what was approved; `among`: the approval was about those of others as well."""
    paths = files.keys() if among else covers.keys() | files.keys()
    return tuple(sorted(path for path in paths if files.get(path, "") not in covers.get(path, ("",))))


def _reopening(
    gate: GateFacts | None, files: dict[str, str] | None, *, among: bool = False
) -> tuple[str, tuple[str, ...]]:
    """Why files make an approval void, and which; empty where they do not."""
    if gate is None or files is None:
        return "", ()
    name = gate.opened.gate_id
    if gate.covers is None:
        return (f"{name} was asked by an earlier version, which did not look at files", ()) if not among else ("", ())
    changed = changed_files(gate.covers, files, among=among)
    if not changed:
        return "", ()
    named = tuple(path for path in changed if path != ev.ALL_FILES)
    return f"{name_changed(changed)} changed after {name} was asked", named


def name_changed(changed: Sequence[str]) -> str:
    """What of that which an approval is about has changed."""
    named = [path for path in changed if path != ev.ALL_FILES] or ["files of the worktree, which were verified,"]
    return ", ".join(named[:10]) + (f" and {len(named) - 10} more" if len(named) > 10 else "")


def is_outdated(plan: Plan, facts: Facts, task: PlannedTask, gate: GateFacts) -> bool:
    """Whether an open gate is to ask anew: what it quotes or what was verified is another result now, or was edited.

    Or an earlier version asked, without a look at the files that the command names.
    """
    unseen = gate.covers is None and has_command(task.definition)
    return unseen or not _shows(gate, shown_digest(plan, facts, task)[0], shown_checks(plan, facts, task, {}))


def _shows(gate: GateFacts, digest: str, verified: Sequence[ev.ShownCheck]) -> bool:
    """Whether this is what the gate asked about."""
    return gate.opened.shown == digest and are_shown(gate.opened.verified, verified)


def may_be_asked(plan: Plan, facts: Facts, gate: GateFacts) -> bool:
    """Whether an open gate asks about what is so now: it is not held, nor about to be asked anew."""
    if is_held(plan, facts, gate.opened):
        return False
    task = _guarded_task(plan, gate.opened)
    try:
        return task is None or not is_outdated(plan, facts, task, gate)
    except AgentosError:  # the task fails of it, once it is looked at
        return False


def gates_to_ask(plan: Plan, facts: Facts) -> list[ev.DecisionRequired]:
    """The open gates of a run, but those about a task that runs again. Where nothing else can go on, these as well."""
    opened = [facts.gates[gate_id].opened for gate_id in facts.open_gates]
    asked = [gate for gate in opened if not is_held(plan, facts, gate)]
    return asked if asked or facts.running else opened


def is_held(plan: Plan, facts: Facts, gate: ev.DecisionRequired) -> bool:
    """Whether an open gate is not to be asked now: a task that it is about runs again, and may give something else."""
    if gate.kind in ("layer", "error"):
        return any(facts.task(task_id).layer < gate.layer for task_id in facts.running)
    task = _guarded_task(plan, gate)
    if gate.kind == "wait" and gate.task_id is not None:
        task = plan.tasks.get(gate.task_id)
    return task is not None and any(not facts.task(need).ended for need in task.definition.needs)


def _guarded_task(plan: Plan, gate: ev.DecisionRequired) -> PlannedTask | None:
    """The task that the gate asks to start, if it is in the plan; None for any other question."""
    if gate.task_id is None or gate.kind not in ("approve", "approval"):
        return None
    return plan.tasks.get(gate.task_id)


def approving_gate(facts: Facts, task: PlannedTask) -> GateFacts | None:
    """The gate at which the task was asked about, or else the fan-out that it is an item of."""
    own, parent = newest_gate(facts, gate_kind(task), task.id, task.id)[0], fan_out_of(task)
    return own if own is not None or parent is None else newest_gate(facts, "approve", parent, parent)[0]


def gate_kind(task: PlannedTask) -> ev.GateKind:
    return "approval" if task.definition.kind == "approval" else "approve"


def ask_gate(facts: Facts, task: PlannedTask, why: str) -> ev.DecisionRequired | None:
    """The question about an effect that may have happened; None where it is asked already."""
    gate, next_name = newest_gate(facts, "ask", task.id, task.id)
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        return None
    step = next(iter(begun_steps(facts.task(task.id))), None)
    subject = f"Task {task.id!r}" if step is None else f"Step {step.number + 1}, {step.name!r}, of task {task.id!r}"
    return ev.DecisionRequired(
        gate_id=next_name,
        kind="ask",
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=f"{subject} had begun ({why}) and may have taken effect. Did it run?",
        choices=EFFECT_ANSWERS,
        step=None if step is None else step.number,
        # Refused, with the three answers: none of them is given by whoever types a command that they did not choose.
        command=answer_command(facts.workflow_id, next_name),
    )


def limit_gate(facts: Facts, task: PlannedTask) -> ev.DecisionRequired | None:
    """The question what becomes of an agent at a limit that ends nobody knows when; None where it is asked already."""
    gate, name = newest_gate(facts, "limit", task.id, task.id)
    if gate is not None and gate.opened.gate_id in facts.open_gates:
        return None
    error = facts.task(task.id).error
    why = error.text.partition("\n")[0] if error is not None else "its agent has reached a limit"
    return ev.DecisionRequired(
        gate_id=name,
        kind="limit",
        task_id=task.id,
        layer=task.layer,
        place=task.place,
        question=f"Task {task.id!r} is held up, and nobody knows until when: {why}. Try now, wait (wait-90m), or fail?",
        choices=LIMIT_ANSWERS,
        command=answer_command(facts.workflow_id, name, LIMIT_ANSWERS),
    )


def gate_choices(gate: ev.DecisionRequired) -> tuple[str, ...]:
    """What an approval must name one of; also where an earlier version asked, which took a plain yes for a repeat."""
    return EFFECT_ANSWERS if gate.kind == "ask" else gate.choices


def prints_text(definition: TaskDef) -> bool:
    """Whether the task's output is what a command printed, as text."""
    return definition.kind == "shell" and definition.output != "json"


def vouched_output(definition: TaskDef, given: Any) -> Any:
    """The output of a task that ran, as somebody says: of a command what it printed, in the shape of its output.

    CommandRefusedError where a command cannot have given that.
    """
    if not prints_text(definition):
        return given
    shape: dict[str, Any] = {"stdout": "", "stderr": "", "exit_code": 0}
    if given is None or isinstance(given, str):
        return {**shape, "stdout": (given or "").removesuffix("\n")}
    if isinstance(given, Mapping) and {*shape, "values"}.issuperset(given):
        told = {**shape, **given}
        if isinstance(told["stdout"], str) and isinstance(told["stderr"], str) and told["exit_code"] == 0:
            return told
    raise CommandRefusedError(
        f"task {definition.id!r} is a command: its output is what it printed, as text, "
        "or a map of stdout, stderr, exit_code (0) and values"
    )


def choice_argument(kind: str, choice: str) -> str:
    """What to add to an approval to take this choice."""
    told = " --output TEXT" if kind == "ask" and choice == IT_RAN else ""
    return f" --choose {shlex.quote(choice)}{told}"


def answer_command(workflow_id: str, gate_id: str, choices: Sequence[str] = (), *, signed: bool = False) -> str:
    """What to type to say yes; of a gate with choices, to the first of them."""
    chosen = f" --choose {shlex.quote(choices[0])}" if choices else ""
    signs = " --sign" if signed else ""
    return f"agentos approve {shlex.quote(short_id(workflow_id))} {shlex.quote(gate_id)}{signs}{chosen}"


def takes_signature(definition: TaskDef) -> bool:
    """Whether only a signed yes lets the task start."""
    return definition.approve is not None and definition.approve.by == "signed"


def tasks_behind_signatures(plan: Plan) -> frozenset[TaskId]:
    """Tasks that start only after a signed yes: to themselves, or to one that they need."""
    ahead = [task.id for task in plan.tasks.values() if takes_signature(task.definition)]
    behind = set(ahead)
    while ahead:
        new = [name for name in plan.dependants.get(ahead.pop(), ()) if name not in behind]
        behind.update(new)
        ahead += new
    return frozenset(behind)


def refuse_unsignable(facts: Facts, added: Iterable[TaskDef]) -> None:
    """WorkflowDefinitionError where tasks that come in under way take signed answers, and nobody could sign them."""
    if facts.signers is not None:
        return
    message = "by: signed needs signers, which are those of the start: no task took a signature then"
    if findings := tuple(
        Finding(problem="bad setting", task_id=definition.id, setting="approve", message=message)
        for definition in added
        if takes_signature(definition)
    ):
        raise WorkflowDefinitionError(findings)


def only_rejected(facts: Facts) -> bool:
    """Whether all that failed was rejected at a gate: then no resume has anything left to run."""
    errors = [facts.task(task_id).error for task_id in facts.failed]
    rejected = all(error is not None and error.type == "GateRejected" for error in errors)
    return rejected and (bool(errors) or facts.refused is not None)

"""Candidates: what a task becomes that several work on side by side, and who judges them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agentos import typed
from agentos.dag.define.model_calls import AgentWork, LlmWork, switched_work
from agentos.dag.define.task import Approve, CandidateDef, JudgeDef, TaskDef
from agentos.ids import TaskId

JUDGE = "judge"
CANDIDATES = "candidates"
"""What the judge's settings call the table of them."""
_SHARED = ("prompt", "permissions", "max_turns", "verify", "on_resume", "schema")
"""What an agent takes over from the task that names another agent."""
_CRITERIA = """\
Several candidates worked on the same task, each from the same files and without knowing of the others. Compare what \
they did, and choose the one whose work is to be taken: it does what was asked, wholly and correctly, and is the \
simplest to read and maintain."""
_TASK = "\n\nThe task they were given:\n\n"


def candidate_keys(definition: TaskDef) -> list[str]:
    """What each candidate is called: by its agent, where it is the only one with that; else by its number."""
    names = [one.agent or ("llm" if one.llm else "") for one in definition.candidates]
    count = Counter(names)
    return [name if name and count[name] == 1 else str(at) for at, name in enumerate(names, start=1)]


def child_id(parent: TaskId, key: str) -> TaskId:
    return TaskId(f"{parent}[{key}]")


def key_of(parent: TaskId, child: TaskId) -> str:
    """The key in the id of a candidate or a judge."""
    return child.removeprefix(f"{parent}[").removesuffix("]")


def contest_tasks(definition: TaskDef) -> list[TaskDef]:
    """A task for each candidate, then that of the judge, if there is one."""
    base = replace(definition, approve=None, condition="", candidates=(), judge=None, continue_on_error=True)
    children = [
        _candidate_task(base, key, one)
        for key, one in zip(candidate_keys(definition), definition.candidates, strict=True)
    ]
    if definition.judge is not None:
        children.append(_judge_task(definition, definition.judge, [child.id for child in children]))
    return children


def all_work(definitions: Iterable[TaskDef]) -> Iterator[TaskDef]:
    """Whatever these tasks come to: of one with candidates each of them, and the judge; the agent that one switches to
    at a limit."""
    for definition in definitions:
        for one in contest_tasks(definition) if definition.candidates else [definition]:
            yield one
            if one.agent is not None and one.on_limit.act == "switch":
                yield replace(one, agent=switched_work(one.agent, one.on_limit))


def _candidate_task(base: TaskDef, key: str, candidate: CandidateDef) -> TaskDef:
    work = base.agent or base.llm
    given = msgspec.to_builtins(work) if work is not None else {}
    own = replace(base, id=child_id(base.id, key), env={**base.env, "AGENTOS_CANDIDATE": key})
    if candidate.llm or (not candidate.agent and base.kind == "llm"):
        if base.kind != "llm":
            given = {name: given[name] for name in ("prompt", "schema") if name in given}
        model = {"model": candidate.llm} if candidate.llm else {}
        llm = typed.convert({**given, **candidate.work, **model}, LlmWork)
        return replace(own, kind="llm", agent=None, llm=llm, effects=("none",), isolation="", sandbox="")
    if candidate.agent and candidate.agent != given.get("agent"):
        given = {name: given[name] for name in _SHARED if name in given}
    named = {"agent": candidate.agent} if candidate.agent else {}
    effects = ("files",) if base.kind == "llm" else base.effects
    agent = typed.convert({**given, **candidate.work, **named}, AgentWork)
    return replace(own, kind="agent", agent=agent, llm=None, effects=effects)


def verdict_schema(keys: Sequence[str]) -> dict[str, Any]:
    """What a model answers that judges."""
    properties = {"winner": {"enum": list(keys)}, "reason": {"type": "string"}}
    return {"type": "object", "properties": properties, "required": ["winner", "reason"], "additionalProperties": False}


def _judge_task(definition: TaskDef, judge: JudgeDef, candidates: Sequence[TaskId]) -> TaskDef:
    keys = candidate_keys(definition)
    task = TaskDef(
        id=child_id(definition.id, JUDGE),
        kind="shell",
        needs=(*definition.needs, *candidates),
        env=definition.env,
        timeout_s=definition.timeout_s,
        retry=definition.retry,
        budget=definition.budget,
        concurrency=definition.concurrency,
        effects=("files",),
        isolation="worktree",  # whatever it tries, nothing is left of it
        sandbox=definition.sandbox,
    )
    if judge.by == "run":
        return replace(task, run=judge.run, cwd=definition.cwd)
    if judge.by == "human":
        question = f"Which candidate of {definition.id!r} is taken? `agentos diff` shows what each did"
        return TaskDef(
            id=task.id,
            kind="approval",
            needs=task.needs,
            inputs={CANDIDATES: f"${{{{ {CANDIDATES} }}}}"},
            approve=Approve(question=question, choices=tuple(keys)),
        )
    asked = definition.agent or definition.llm
    prompt = f"{judge.work.get('prompt', _CRITERIA)}{_TASK}{asked.prompt if asked is not None else ''}"
    work = {**judge.work, "prompt": prompt, "schema": verdict_schema(keys)}
    if judge.by == "llm":
        llm = typed.convert(work, LlmWork)
        return replace(task, kind="llm", llm=llm, effects=("none",), isolation="", sandbox="")
    return replace(task, kind="agent", agent=typed.convert({"permissions": "read", **work}, AgentWork))


def contest_problems(definition: TaskDef) -> Iterator[tuple[str, str]]:
    """What does not go together with candidates, or without them."""
    if not definition.candidates:
        if definition.judge is not None:
            yield "judge", "judge without candidates: there is nothing to choose from"
        return
    if definition.for_each is not None:
        yield "candidates", "candidates and for_each: a task has one of them"
    if definition.repeat is not None:
        yield "candidates", "candidates and repeat: put the task with candidates into the group that is repeated"
    if definition.isolation != "worktree":
        yield "candidates", "candidates work in worktrees of their own: isolation is 'worktree', or left out"
    if definition.external:
        yield "candidates", "candidates change files only, and one of them wins: effects 'external' would all happen"

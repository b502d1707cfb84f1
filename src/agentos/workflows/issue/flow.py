"""The graph of the issue workflow. `agentos graph RUN` draws it."""

from __future__ import annotations

from typing import Any

from agentos import Workflow
from agentos.dag.define.workflow import maker
from agentos.workflows.issue import steps
from agentos.workflows.issue.filing import file_issue
from agentos.workflows.issue.programs import ask_program
from agentos.workflows.issue.prompts import AGAIN
from agentos.workflows.issue.roles import parse_filer, parse_role

NAME = "issue"
PARAMETERS = ("brief", "name", "digest", "prompts")
"""Path of the brief from the root, name of the run's folder, digests of the brief and of the prompts."""
CALL_S = 1800.0
"""A drafter or reviewer that takes longer is given up."""
MOST_ROUNDS = 100
"""Where the engine gives up. A human is asked long before: after --max-rounds."""


@maker
def issue_flow(
    *,
    drafter: str,
    reviewer: str,
    filer: str = "gh",
    gates: list[str],
    max_rounds: int = 5,
    budget: float | None = None,
) -> Workflow:
    """The workflow for these roles. `gates` are those at which a human is always asked: draft, verdict, both, none."""
    flow = Workflow(NAME, params=PARAMETERS, budget=budget)
    flow.add("load", steps.load)
    settings = {"drafter": drafter, "reviewer": reviewer, "filer": filer}
    flow.add("preflight", steps.preflight, needs=["load"], inputs=settings)
    _add_drafting(flow, drafter, ask="draft" in gates)
    _add_review(flow, reviewer, max_rounds=max_rounds, always_ask="verdict" in gates)
    rounds = {"tasks": _group(flow), "until": "tasks.outcome.output.done", "max": MOST_ROUNDS}
    flow.add("settled", repeat=rounds, if_="not failure()")  # in a round, some tasks are skipped
    _add_filing(flow, filer)
    return flow


def _group(flow: Workflow) -> list[str]:
    """The tasks of a round: all but the two before the first."""
    return [draft.id for draft in flow.drafts if draft.id not in ("load", "preflight")]


def _add_drafting(flow: Workflow, drafter: str, *, ask: bool) -> None:
    brief, last = "${{ tasks.load.output.text }}", "${{ tasks.outcome.output || null }}"
    flow.add("prompt", steps.ask_for_draft, needs=["preflight"], inputs={"brief": brief, "last": last})
    _add_call(flow, "draft", drafter, "${{ tasks.prompt.output.text }}")
    flow.add("drafted", steps.keep_draft, inputs=_outputs(answer="draft", asked="prompt"))
    look: Any = None
    if ask:
        question = {
            "question": "Draft ${{ tasks.drafted.output.round }} of ${{ params.name }}: send it to the reviewer?",
            "choices": ["send", "revise"],
            "file": "${{ tasks.drafted.output.file }}",
        }
        flow.add("look", "approval", needs=["drafted"], question=question)
        look = "${{ tasks.look.output }}"
    flow.add("taken", steps.take_draft, inputs={**_outputs(draft="drafted"), "brief": brief, "look": look})


def _add_review(flow: Workflow, reviewer: str, *, max_rounds: int, always_ask: bool) -> None:
    prompt, last = "${{ tasks.taken.output.prompt }}", "${{ tasks.outcome.output || null }}"
    again = f"{prompt}\n\n{AGAIN.format(why='${{ tasks.read.output.why }}')}"
    sent = "not failure() and tasks.taken.output.send"
    _add_call(flow, "review", reviewer, prompt, if_="tasks.taken.output.send")
    flow.add("read", steps.read_review, inputs=_outputs(answer="review"))
    _add_call(flow, "review_again", reviewer, again, if_="not tasks.read.output.readable")
    flow.add(
        "verdict",
        steps.judge,
        if_=sent,
        inputs={
            **_outputs(first="read", draft="drafted"),
            "again": "${{ tasks.review_again.output || null }}",
            "last": last,
            "max_rounds": max_rounds,
            "always_ask": always_ask,
        },
    )
    question = {
        "question": "${{ tasks.verdict.output.ask }} (${{ tasks.verdict.output.file }}) Accept the draft as it is?",
        "choices": ["accept", "revise"],
        "file": "${{ tasks.drafted.output.file }}",
    }
    # Named here, too: a verdict that was skipped because a call failed says only that it was skipped.
    calls = ["review", "review_again"]
    flow.add("decide", "approval", needs=calls, if_=f"{sent} and tasks.verdict.output.ask", question=question)
    flow.add(
        "outcome",
        steps.conclude,
        needs=calls,
        if_="not failure()",
        inputs={
            **_outputs(draft="drafted", taken="taken"),
            "verdict": "${{ tasks.verdict.output || null }}",
            "decided": "${{ tasks.decide.output || null }}",
        },
    )


def _add_filing(flow: Workflow, filer: str) -> None:
    flow.add("intent", steps.intend, needs=["settled"], inputs=_outputs(outcome="outcome"))
    if parse_filer(filer).kind == "none":
        flow.add("kept", steps.keep_unfiled, inputs=_outputs(intent="intent", outcome="outcome"))
        return
    flow.add(
        "file",
        file_issue,
        inputs={"filer": filer, **_outputs(intent="intent")},
        effects="external",
        idempotent=True,  # it looks for its marker first
        isolation="process",
        timeout_s=300,
        retries=2,
    )
    flow.add("filed", steps.keep_filed, inputs=_outputs(filed="file", intent="intent", outcome="outcome"))


def _add_call(flow: Workflow, task: str, role: str, prompt: str, **settings: Any) -> None:
    """The task that asks whoever has the role."""
    chosen = parse_role(role, task)
    match chosen.kind:
        case "command":
            given = {"argv": list(chosen.argv), "prompt": prompt}
            flow.add(task, ask_program, inputs=given, isolation="process", timeout_s=CALL_S, **settings)
        case "llm":
            flow.add(task, "llm", model=chosen.name, prompt=prompt, timeout_s=CALL_S, **settings)
        case "agent":
            # It answers and changes nothing: what it prints is the draft, or the verdict.
            more = {"permissions": "read", "effects": "none", "timeout_s": CALL_S, **settings}
            flow.add(task, "agent", agent=chosen.name, model=chosen.model, prompt=prompt, **more)


def _outputs(**names: str) -> dict[str, str]:
    return {parameter: f"${{{{ tasks.{task}.output }}}}" for parameter, task in names.items()}


issue = issue_flow(
    drafter="command:drafter", reviewer="command:reviewer", filer="gh", gates=["draft", "verdict"], max_rounds=5
)
"""As it is drawn in the documents."""

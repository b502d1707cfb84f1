"""What agents are told beside the user's prompt, and what users are told about agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentos.dag.define.model_calls import OnResume
from agentos.machine.events import AgentSession
from agentos.tasks.agents.adapters.adapter import AgentOutcome

_GOES_ON = """\
You were interrupted while you worked on the task below, and some time has passed since. The files are as they were \
after your last completed step, or a step before it: do not rely on edits that you remember, look at the files. \
Keep what is done, do what is left, and finish the task.

The task, once more:

"""
_REJECTED = """\
What you did was looked at, and is not accepted yet:

{feedback}

The files are as you left them. Mend this, and finish the task.
"""
_SAID_BEFORE = """

Before you were interrupted, this was said about your work:

{feedback}
"""
_FORKED = """\
You were interrupted while you worked on the task below, and some time has passed since. All that you had done to the \
files was undone: they are as they were when you began. Use what you have learned, and do the whole task.

The task, once more:

"""
_BY_SCHEMA = """

When you are done, answer with one JSON document that follows this JSON Schema, and with nothing else:
"""

RETRYABLE: frozenset[AgentOutcome] = frozenset(
    {"agent_error", "api_rate", "api_5xx", "budget", "timeout", "killed", "no_result"}
)
"""Outcomes that another attempt may change: before it, a budget that is used up opens a gate."""

_MEANINGS: Mapping[AgentOutcome, str] = {
    "agent_error": "failed",
    "api_auth": "was refused by its model service: the credential is missing, wrong or may not do this",
    "api_rate": "was sent away by its model service: too many calls, or a limit is used up",
    "api_5xx": "could not get an answer from its model service",
    "bad_input": "was given something that it, or its model, does not take",
    "budget": "was stopped: its budget is used up",
    "turn_limit": "was stopped after its number of turns, before it was done",
    "killed": "was killed",
    "no_result": "ended without saying how",
}
_NEXT: Mapping[AgentOutcome, str] = {
    "api_auth": "Log in with the agent itself, or set the variable that holds its key; see `agentos doctor`.",
    "api_rate": "Resume later, or give the task `retries`.",
    "budget": "Resume the run: it asks whether as much again may be spent.",
    "turn_limit": "Give the task more `max_turns` and resume: it goes on where it was stopped.",
}


def prompt_for(
    prompt: str,
    *,
    earlier: AgentSession | None = None,
    how: OnResume = "continue",
    known: bool = True,
    schema: Mapping[str, Any] | None = None,
) -> str:
    """What the agent reads; `earlier`: the session it goes on with, `how` it does; `known`: whether it is still there.

    The task is in it even then: not every session has survived. Only one that has just ended is told no more than why
    its work was not accepted.
    """
    asked = f"{prompt}{_BY_SCHEMA}{json.dumps(schema)}\n" if schema is not None else prompt
    if earlier is None:
        return asked
    rejected = earlier.ended == "rejected" and how == "continue"
    if rejected and known:
        return _REJECTED.format(feedback=earlier.feedback)
    said = _SAID_BEFORE.format(feedback=earlier.feedback) if earlier.feedback else ""
    return f"{_FORKED if how == 'fork' else _GOES_ON}{asked}{said}"


def failure_text(agent: str, word: AgentOutcome, why: str) -> tuple[str, str]:
    """How an attempt failed, for people; and the next step."""
    text = f"{agent} {_MEANINGS.get(word, 'failed')} ({word})"
    return f"{text}: {why}" if why else text, _NEXT.get(word, "")

"""Verdicts: what a reviewer may say. Whatever does not fit the schema says nothing; only approve approves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec

from agentos import typed

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["approve", "revise", "discuss"]},
        "summary": {"type": "string"},
        "changes": {"type": "array", "items": {"type": "string", "minLength": 1}},
    },
    "required": ["verdict", "summary", "changes"],
    "additionalProperties": False,
}
"""As a model is given it."""

_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\n(.*?)\n\s*```\s*", re.DOTALL)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the reviewer says of a draft."""

    verdict: Literal["approve", "revise", "discuss"]
    summary: str
    changes: tuple[Annotated[str, msgspec.Meta(min_length=1)], ...] = ()


class UnreadableVerdict(ValueError):
    """The answer is no verdict; the text says why."""


def read_verdict(answer: Any) -> Verdict:
    """The verdict in an answer: one JSON object, perhaps in a code fence, or that object itself."""
    try:
        if isinstance(answer, str):
            fenced = _FENCED.fullmatch(answer)
            found = typed.decode((fenced[1] if fenced else answer).strip(), Verdict)
        else:
            found = typed.convert(answer, Verdict)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise UnreadableVerdict(str(error)) from error
    if found.verdict == "revise" and not found.changes:
        raise UnreadableVerdict("it says revise, and nothing that should change")
    return found


def complaint_of(verdict: Verdict) -> str:
    """What is asked for, in a form that only compares: order, case, spaces and punctuation do not count."""
    if verdict.verdict == "approve":
        return ""
    return "\n".join(sorted(map(_bare, verdict.changes))) or _bare(verdict.summary)


def _bare(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def as_list(changes: Iterable[str]) -> str:
    """Changes for people and models to read."""
    return "\n".join(f"- {change}" for change in changes)

"""What a status or a text of a service means."""

from __future__ import annotations

import re

from agentos.tasks.agents.adapters.adapter import AgentOutcome

_STATUS = re.compile(r"(?:\b(?:status|API Error|HTTP|code)\W{0,4}|\()(\d{3})\b", re.IGNORECASE)
_AUTH = re.compile(
    r"not logged in|log ?in again|authenticat|unauthori[sz]ed|invalid api key|api key not valid|no authentication"
    r"|you must specify the \w+ environment variable|set an auth method|expired token",
    re.IGNORECASE,
)
_RATE = re.compile(r"rate.?limit|too many requests|usage limit|quota|resource.?exhausted", re.IGNORECASE)
_BAD = re.compile(
    r"prompt is too long|context.?(window|length)|maximum context|unknown model"
    r"|model .{0,80}not (found|exist|supported)",
    re.IGNORECASE,
)
_SERVICE = re.compile(
    r"high demand|overloaded|stream (closed|disconnected)|connection (closed|reset|error)|mid-response"
    r"|malformed response|error decoding|terminated|incomplete json|fetch failed|network|timed? ?out"
    r"|without sending any chunks|failed to get response",
    re.IGNORECASE,
)


def outcome_of_status(status: int) -> AgentOutcome:
    """What an HTTP status of the service means."""
    if status in (401, 403):
        return "api_auth"
    if status == 429:
        return "api_rate"
    if status >= 500 or status == 408:
        return "api_5xx"
    return "bad_input" if 400 <= status < 500 else "agent_error"


def outcome_of_text(text: str) -> AgentOutcome:
    """What an error's text means, as far as texts can be trusted; `agent_error` for everything else."""
    found = _STATUS.search(text)
    if found and 400 <= int(found[1]) < 600:
        return outcome_of_status(int(found[1]))
    for pattern, word in _BY_TEXT:
        if pattern.search(text):
            return word
    return "agent_error"


_BY_TEXT: tuple[tuple[re.Pattern[str], AgentOutcome], ...] = (
    (_AUTH, "api_auth"),
    (_RATE, "api_rate"),
    (_BAD, "bad_input"),
    (_SERVICE, "api_5xx"),
)


def seconds(value: object) -> float | None:
    """A `Retry-After` in seconds; None for anything else."""
    try:
        wait_s = float(str(value))
    except ValueError:
        return None
    return wait_s if 0 <= wait_s < 86_400 else None

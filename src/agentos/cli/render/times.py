"""Times as people read them; programs get ISO 8601 in UTC, from the encoder."""

from __future__ import annotations

from datetime import datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def local(at: datetime) -> str:
    """For people: date and time where they are."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def ago(at: datetime, now: datetime) -> str:
    """`3 min ago`, `2 d ago`, `just now`; `in 5 min` for what is to come."""
    seconds = int((now - at).total_seconds())
    for size, unit in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds // size} {unit} ago" if seconds > 0 else f"in {-seconds // size} {unit}"
    return "just now"

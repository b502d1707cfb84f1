"""How old runs may become. Pure: what the setting `retention` and the flags of `agentos delete` are made into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from agentos.store.port import RunStatus

_AGE = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
AGES = 'a number of s, m, h, d or w, as "30d"'
"""How an age is written, for a message."""
Age = Annotated[str, Meta(pattern=r"^[0-9]{1,6}[smhdw]\Z")]


class Retention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The setting `retention`: how long runs that have ended are kept. What is not named stays."""

    complete: Age | None = None
    failed: Age | None = None
    aborted: Age | None = None
    keep_last: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """The newest ones of each workflow stay, however old."""

    @property
    def expiry(self) -> Expiry:
        """Which runs may go."""
        named: dict[RunStatus, str | None] = {
            "complete": self.complete,
            "failed": self.failed,
            "aborted": self.aborted,
        }
        return Expiry(
            ages={status: parse_age(age) for status, age in named.items() if age is not None}, keep_last=self.keep_last
        )


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs may go: those in one of these statuses that nobody wrote to for so long."""

    ages: Mapping[RunStatus, timedelta]
    keep_last: int = 0
    """Of each workflow so many stay, the newest of those meant."""
    labels: tuple[str, ...] = ()
    """Only runs with one of these, where any are named."""

    def __bool__(self) -> bool:
        return bool(self.ages)

    def __str__(self) -> str:
        """For people: `complete after 30d, failed after 90d, but the newest 100 of each workflow`."""
        ages = ", ".join(f"{status} after {age_text(age)}" for status, age in self.ages.items())
        return f"{ages}, but the newest {self.keep_last} of each workflow" if self.keep_last else ages


def parse_age(text: str) -> timedelta:
    """A length of time from `30d`. ValueError."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no age: write {AGES}")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def age_text(age: timedelta) -> str:
    """As it may be written, in the largest unit that is whole."""
    seconds = int(age.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def expiry_for(
    statuses: Iterable[RunStatus], older_than: timedelta | None, *, keep_last: int = 0, labels: Iterable[str] = ()
) -> Expiry:
    """The same age for each status; with none they may go at once."""
    ages = dict.fromkeys(statuses, older_than or timedelta())
    return Expiry(ages=ages, keep_last=keep_last, labels=tuple(labels))

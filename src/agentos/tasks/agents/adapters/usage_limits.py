"""Limits of subscriptions: whether an agent's words speak of one, and when they say that it is over.

The words that agents are known to use, and where they were found, are in tests/agents/limit_messages.py.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

FARTHEST = timedelta(days=8)
"""The longest window of a subscription is a week: a reset that is farther away is not believed."""
JUST_PAST = timedelta(minutes=2)
"""A time of day that is over for no longer than this has just come, and not almost a day to go."""

_LIMIT = re.compile(
    r"\b(usage|rate|session|weekly|daily|monthly|hour(ly)?|spend(ing)?|billing|plan|credit|requests?|opus|sonnet"
    r"|fable \d|fast)[- _](hard )?(limit|quota|cap|allowance)"
    r"|(?<!disk )\bquota\b|resource.?exhausted|rate.?limit|too many requests"
    r"|\bout of (extra |free )?(usage|credits|codex messages)|\busage (exceeded|credits)"
    r"|\b(hit|reached|exceeded|exhausted) your .{0,60}?(limit|quota|usage|credits|capacity|allowance)"
    r"|\bused (up )?(all|100 ?%) of your|\bincluded usage|\b(allowance|allocation|credits) .{0,10}(exhausted|used up)"
    r"|\bcredit balance .{0,4}too low|\binsufficient[ _](balance|credits?|funds|quota)"
    r"|\bpayment required|\bno payment method",
    re.IGNORECASE,
)
"""Each names whose limit it is: memory, a context and turns have limits, too."""
_STAMP = re.compile(r"\|(\d{10})(?:\d{3})?\b")
_CUE = r"(?:reset(?:s|ting)?|try again|retry(?:ing)?|available(?: again)?|regain access|wait)"
_LENGTHS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_UNIT = r"(?:days?|d|hours?|hrs?|h|minutes?|mins?|ms|m|seconds?|secs?|s)(?![a-z])"
_ONE = rf"(\d+(?:\.\d+)?)\s*({_UNIT})"
_DURATION = re.compile(
    rf"{_CUE}\s*(?:in|after|for)?:?\s+(?:about |another )?((?:{_ONE}[\s,]*(?:and\s+)?)+|less than a minute)",
    re.IGNORECASE,
)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))?(?::\d{2})?\s*(?P<half>[ap]\.?m\b)?"
_ZONE = r"(?:\s*\(?(?P<zone>UTC|GMT|[A-Z][A-Za-z_]+(?:/[A-Za-z0-9_+-]+)+)\)?)?"
_AT = rf"{_CUE}\s*(?:at|on|after|:)?\s+"
_DATE = re.compile(
    rf"{_AT}(?P<month>{'|'.join(_MONTHS)})[a-z]*\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<year>\d{{4}}))?"
    rf"(?:(?:,|\s+at|,\s+at)?\s+{_CLOCK})?{_ZONE}",
    re.IGNORECASE,
)
_TIME = re.compile(rf"{_AT}{_CLOCK}{_ZONE}", re.IGNORECASE)
_ISO = re.compile(
    rf"{_CUE}.{{0,20}}?\b(\d{{4}}-\d{{2}}-\d{{2}})(?:T| at | )(\d{{2}}:\d{{2}}(?::\d{{2}}(?:\.\d+)?)?)"
    r"(?:\s?(Z|UTC|[+-]\d{2}:?\d{2}))?",
    re.IGNORECASE,
)


def speaks_of_limit(text: str) -> bool:
    """Whether an error's text says that a limit of the account, or of its plan, is reached."""
    return _LIMIT.search(text) is not None


def believable(until: datetime, now: datetime) -> datetime | None:
    """When to try again; None for a moment that is over, or too far away to be believed."""
    if until - now > FARTHEST or now - until > JUST_PAST:
        return None
    return max(until, now)


def reset_time(text: str, now: datetime) -> datetime | None:
    """When the limit is over, by an error's text; None where it does not tell, or cannot be believed.

    `now` is in the zone in which a time without one is meant. What is told to the minute is over when that minute is.
    """
    try:
        told = _reset_in(text, now)
    except (ValueError, OverflowError):  # no such day, hour or year
        return None
    return believable(told.astimezone(now.tzinfo), now) if told is not None else None


def _reset_in(text: str, now: datetime) -> datetime | None:
    if found := _STAMP.search(text):
        return datetime.fromtimestamp(int(found[1]), now.tzinfo)
    if found := _ISO.search(text):
        return _moment(found, now)
    if found := _DURATION.search(text):
        return now + timedelta(seconds=duration_s(found[1]))
    if found := _DATE.search(text):
        return _date(found, now)
    if (found := _TIME.search(text)) and (found["minute"] or found["half"]):
        return _time(found, now)
    return None


def duration_s(text: str) -> float:
    """Seconds of a length of time in words, as `3 days 4 hours` or `18h20m`."""
    parts = re.findall(_ONE, text, re.IGNORECASE)
    lengths = [float(number) * _LENGTHS["ms" if unit.lower() == "ms" else unit[0].lower()] for number, unit in parts]
    return sum(lengths) if parts else 60.0


def _moment(found: re.Match[str], now: datetime) -> datetime:
    zone = "+00:00" if (found[3] or "").upper() in ("Z", "UTC") else found[3] or ""
    told = datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}")
    return told if told.tzinfo is not None else told.replace(tzinfo=now.tzinfo)


def _date(found: re.Match[str], now: datetime) -> datetime:
    zone = _zone_of(found["zone"], now)
    month, day = _MONTHS.index(found["month"].lower()) + 1, int(found["day"])
    hour, minute = _clock(found) if found["hour"] else (0, 0)
    here = now.astimezone(zone)
    year = int(found["year"]) if found["year"] else here.year
    told = datetime(year, month, day, hour, minute, tzinfo=zone) + timedelta(minutes=1)
    if not found["year"] and told < here - timedelta(days=180):  # said in December, of January
        told = told.replace(year=year + 1)
    return told


def _time(found: re.Match[str], now: datetime) -> datetime:
    zone = _zone_of(found["zone"], now)
    hour, minute = _clock(found)
    here = now.astimezone(zone)
    told = here.replace(hour=hour, minute=minute, second=0, microsecond=0) + timedelta(minutes=1)
    if told < here - JUST_PAST:
        told += timedelta(days=1)
    return told


def _clock(found: re.Match[str]) -> tuple[int, int]:
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if found["half"]:
        hour = hour % 12 + (12 if found["half"].lower().startswith("p") else 0)
    return hour, minute


def _zone_of(name: str | None, now: datetime) -> tzinfo:
    if name:
        try:
            return ZoneInfo("UTC" if name.upper() == "GMT" else name)
        except (KeyError, ValueError, OSError):  # a name that this machine does not know
            pass
    assert now.tzinfo is not None
    return now.tzinfo

"""When a workflow runs by itself: what is written under `cron`, and the slots that it means.

A slot is a whole minute in UTC. Expressions are read by cronsim, which goes by the clock of a zone as Debian's cron
does: a fixed time that the clock skips in spring comes at the first minute after the gap, one that it shows twice in
autumn comes the first time only; where the minute or the hour begins with `*`, every passing hour counts. Zones are
tables of the host, read as they are needed: nothing here knows what time it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile
from typing import Any, Literal, get_args

import msgspec

from agentos.dag.define.readers import BadSetting, one_of, text
from agentos.dag.plan.findings import nearest
from agentos.ids import EPOCH

Overlap = Literal["skip", "queue"]
CatchUp = Literal["none", "last", "all"]

CRON_SCHEMA: Mapping[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "additionalProperties": False,
            "oneOf": [{"required": ["at"]}, {"required": ["every"]}],
            "properties": {
                "at": {"type": "string", "description": "minute, hour, day of the month, month, day of the week"},
                "every": {"type": "string", "pattern": "^[1-9][0-9]{0,5}[mhdw]$", "description": "As 15m, 6h or 1d."},
                "zone": {"type": "string", "description": "Whose clock `at` means. Default: UTC."},
                "overlap": {
                    "enum": list(get_args(Overlap)),
                    "description": "While the run of the slot before has not ended: skip it (default), or queue it.",
                },
                "catch_up": {
                    "enum": list(get_args(CatchUp)),
                    "description": "What is made up for where no worker was there. Default: the last slot.",
                },
            },
        },
    ]
}
"""What a file may say under `cron`."""

_UNITS = {"m": 1, "h": 60, "d": 24 * 60, "w": 7 * 24 * 60}
_EVERY = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_LONGEST = 366 * _UNITS["d"]
_MINUTE = timedelta(minutes=1)
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_FIELDS = "five fields: minute, hour, day of the month, month, day of the week"


class Cron(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a workflow runs once it was given to `agentos schedule add`. Either `at` or `every` says it."""

    at: str = ""
    """A cron expression of five fields."""
    every: str = ""
    """An interval in whole minutes, as `15m` or `6h`, counted from the beginning of 1970 in UTC."""
    zone: str = "UTC"
    """Whose clock `at` means."""
    overlap: Overlap = "skip"
    """What becomes of a slot while the run of the one before has not ended: nothing, or it waits for that."""
    catch_up: CatchUp = "last"
    """Which of the slots are made up for that nobody was there for."""

    def __str__(self) -> str:
        if self.every:
            return f"every {self.every}"
        return self.at if self.zone == "UTC" else f"{self.at} ({self.zone})"


def read_cron(value: Any) -> Cron:
    """A cron expression, or a map. BadSetting where it never comes, or cannot be read."""
    if isinstance(value, Cron):
        value = msgspec.to_builtins(value)
    if isinstance(value, str):
        value = {"at": value}
    if not isinstance(value, Mapping):
        raise BadSetting(f'it takes an expression such as "0 3 * * 1-5", or a map of at or every, not {value!r}')
    for key in value:
        if key not in Cron.__struct_fields__:
            raise BadSetting(f"unknown key {key!r}{nearest(str(key), Cron.__struct_fields__)}")
    if ("at" in value) == ("every" in value):
        raise BadSetting("it says `at` or `every`, one of them")
    catch_up = one_of(get_args(CatchUp))("catch_up", value.get("catch_up", "last"))
    overlap = one_of(get_args(Overlap))("overlap", value.get("overlap", "queue" if catch_up == "all" else "skip"))
    if (overlap, catch_up) == ("skip", "all"):
        raise BadSetting(
            "`catch_up: all` needs `overlap: queue`: with skip, all slots that are made up for would be skipped but one"
        )
    said: dict[str, Any] = {"overlap": overlap, "catch_up": catch_up}
    if "every" in value:
        if "zone" in value:
            raise BadSetting("`zone` is for `at`; intervals are counted in UTC")
        return Cron(every=_read_every(value["every"]), **said)
    read = Cron(at=" ".join(text("at", value["at"]).split()), zone=_read_zone(value.get("zone", "UTC")), **said)
    _refuse_bad_expression(read)
    return read


def _read_every(value: Any) -> str:
    found = _EVERY.fullmatch(value) if isinstance(value, str) else None
    if found is None or _minutes(value) > _LONGEST:
        raise BadSetting(f"every takes whole minutes, hours, days or weeks up to a year, as 15m or 6h, not {value!r}")
    return found[0]


def _minutes(every: str) -> int:
    return int(every[:-1]) * _UNITS[every[-1]]


def _read_zone(value: Any) -> str:
    zone = text("zone", value)
    try:
        find_zone(zone)
    except (LookupError, ValueError, OSError):
        import zoneinfo

        known = zoneinfo.available_timezones()
        hint = nearest(zone, known) if known else ": this machine has no time zones (install tzdata)"
        raise BadSetting(f"there is no time zone {zone!r}{hint}") from None
    return zone


def find_zone(name: str) -> tzinfo:
    """The zone of this name. LookupError, ValueError or OSError where this host has none."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _refuse_bad_expression(cron: Cron) -> None:
    from cronsim import CronSimError

    if len(cron.at.split()) != 5:
        raise BadSetting(f"{cron.at!r} is no cron expression: it has {_FIELDS}")
    try:
        first = next(slots_after(cron, _LONG_AGO), None)
    except CronSimError as error:
        what = str(error).removeprefix("Bad ").replace("-", " ")
        day = ", or no such month has that day" if what == "day of month" else ""
        raise BadSetting(f"{cron.at!r} is no cron expression: its {what} is wrong{day} ({_FIELDS})") from None
    if first is None:
        raise BadSetting(f"{cron.at!r} never comes: no such month has that day")


# --- slots --------------------------------------------------------------------------------------------------------


def slots_after(cron: Cron, instant: datetime) -> Iterator[datetime]:
    """Every slot later than this, in order, in UTC."""
    if cron.every:
        step = _minutes(cron.every) * _MINUTE
        slot = EPOCH + (instant - EPOCH) // step * step
        while True:
            slot += step
            yield slot
    from cronsim import CronSim  # few processes look at schedules

    last = instant
    for found in CronSim(cron.at, instant.astimezone(find_zone(cron.zone))):
        slot = found.astimezone(UTC)
        if slot > last:  # in the hour that comes twice, a fixed time is given as that of the first one
            last = slot
            yield slot


def slots_between(cron: Cron, after: datetime, upto: datetime) -> Iterator[datetime]:
    """Those later than `after`, up to and with `upto`."""
    return takewhile(lambda slot: slot <= upto, slots_after(cron, after))


def last_slot(cron: Cron, after: datetime, upto: datetime) -> datetime | None:
    """The newest of those; None where there is none. What it costs does not grow with how many there are."""
    width = 120 * _MINUTE
    while True:
        start = max(after, upto - width)
        newest = max(slots_between(cron, start, upto), default=None)
        if newest is not None or start == after:
            return newest
        width *= 8

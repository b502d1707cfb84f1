"""Filing an issue once. A marker in its text is looked for first; only where it is nowhere is an issue created.

The marker stands in the journal before anything is created, so that a run killed anywhere finds what it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agentos import Context
from agentos.exceptions import AttemptError
from agentos.workflows.issue.programs import call_program
from agentos.workflows.issue.roles import Filer, parse_filer

NEWEST = 300
"""Issues of the repository that are looked through for the marker; the tracker's own search covers older ones."""
_LABELS = re.compile(r"^(?:#+[ \t]+)?[*_]*labels[*_]*[ \t]*:[*_]*[ \t]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
"""A line of its own: no item of a list that happens to speak of labels, and nothing of the lines after it."""
_URL = re.compile(r"https?://\S+")
_TITLE_LENGTH = 200


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What is going to be filed, as the journal holds it before that happens."""

    marker: str
    title: str
    labels: tuple[str, ...]
    body: str
    """With the marker in a comment that readers do not see."""


def file_issue(filer: str, intent: Intent, ctx: Context) -> dict[str, Any]:
    """The issue with this marker: found, or created. Safe to repeat."""
    tracker = Gh(ctx.root) if (chosen := parse_filer(filer)).kind == "gh" else Program(chosen, ctx.root)
    url = tracker.find(intent.marker)
    found = bool(url)
    if not found:
        ctx.progress(f"creating {intent.title!r}")
        url = tracker.create(intent)
    return {"url": url, "number": number_in(url), "found": found, "filed_at": datetime.now(UTC).isoformat()}


def number_in(url: str) -> str:
    """The last number in a URL; empty where there is none."""
    return next(iter(reversed(re.findall(r"\d+", url))), "")


def intent_of(text: str, marker: str) -> Intent:
    """What the accepted draft becomes."""
    title, rest = title_in(text)
    labels: tuple[str, ...] = ()
    if line := _last_line(_LABELS, rest):
        labels = tuple(dict.fromkeys(filter(None, (_label(word) for word in line[1].split(",")))))
        rest = rest[: line.start()] + rest[line.end() :]
    return Intent(marker=marker, title=title, labels=labels, body=f"{rest.strip()}\n\n<!-- {marker} -->\n")


def _label(word: str) -> str:
    # No label begins with a dash: a program would take it for an option.
    return word.strip(" \t\r`*_\"'").lstrip("-").strip()


def title_in(text: str) -> tuple[str, str]:
    """The first heading and what else there is; without one the first line that says something."""
    lines = text.strip().splitlines()
    at = next((place for place, line in enumerate(lines) if line.startswith("# ") and line[2:].strip()), 0)
    title = lines[at].lstrip("# ").strip() if lines else "Untitled"
    return title[:_TITLE_LENGTH], "\n".join([*lines[:at], *lines[at + 1 :]])


def _last_line(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = list(pattern.finditer(text))
    return found[-1] if found else None


class Program:
    """`PROGRAM find --marker M` and `PROGRAM create --title T [--label L]…`, the text on stdin."""

    def __init__(self, filer: Filer, root: Path) -> None:
        self._argv, self._root = filer.argv, root

    def find(self, marker: str) -> str:
        said = call_program([*self._argv, "find", "--marker", marker], "", self._root, quiet=True).strip()
        # Other words are no issue: taken for one, nothing would ever be filed.
        return _url_in(said, f"{self._argv[0]} find") if said else ""

    def create(self, intent: Intent) -> str:
        labels = [word for label in intent.labels for word in ("--label", label)]
        said = call_program([*self._argv, "create", "--title", intent.title, *labels], intent.body, self._root)
        return _url_in(said, self._argv[0])


class Gh:
    """GitHub's own program; it finds the repository by the root's remote, and has its own credentials."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, marker: str) -> str:
        # The list is up to date at once; the search, which also knows older issues, some seconds later.
        return self._with_marker(marker) or self._with_marker(marker, "--search", f'"{marker}" in:body')

    def create(self, intent: Intent) -> str:
        self._make_labels(intent.labels)
        labels = [word for label in intent.labels for word in ("--label", label)]
        said = self._gh("issue", "create", "--title", intent.title, "--body-file", "-", *labels, text=intent.body)
        return _url_in(said, "gh")

    def _with_marker(self, marker: str, *more: str) -> str:
        listed = self._gh("issue", "list", "--state", "all", "--limit", str(NEWEST), "--json", "url,body", *more)
        found = [row["url"] for row in _rows(listed) if marker in (row.get("body") or "")]
        return str(found[0]) if found else ""

    def _make_labels(self, wanted: Iterable[str]) -> None:
        if not wanted:
            return
        listed = _rows(self._gh("label", "list", "--limit", "1000", "--json", "name"))
        there = {str(row["name"]).casefold() for row in listed}
        for label in wanted:
            if label.casefold() not in there:
                self._gh("label", "create", label)

    def _gh(self, *arguments: str, text: str = "") -> str:
        return call_program(["gh", *arguments], text, self._root, quiet=True)


def _rows(text: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(text, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise AttemptError(f"gh printed no list: {error}") from error


def _url_in(said: str, program: str) -> str:
    found = _URL.findall(said)
    if not found:
        raise AttemptError(f"{program} printed no URL of the issue: {said.strip()[:200]!r}")
    return str(found[-1])

"""Stored values, parameters, usage, errors of tasks and changes of files, as people read them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from agentos.client.definitions import Parameter, path_from_here
from agentos.client.files import FileChange
from agentos.client.types import events as ev
from agentos.client.views import AttemptEvidence, CandidateRow, StoredRun, TaskView, WaitingView, money
from agentos.exceptions import AgentosError
from agentos.excerpts import shorten_command
from agentos.ids import TaskId
from agentos.render.text import count, duration, local, name_some, printable, printable_lines, short, until
from agentos.values import TAG, decode_value, without_surrogates

SHELL_OUTPUT = {"stdout", "stderr", "exit_code"}
MOST_LINES = 8
_READ_WHOLE = 900
"""Bytes of a stored value that are looked at to show its beginning; of large ones a little more is read."""
"""So many more lines of a value of several are shown."""
_MOST_CHECKS, _SAID_LINES = 20, 3
"""Commands of `verify` that a gate shows to people, and the last lines of each; programs get all."""


def unwrap_shell_output(value: Any) -> Any:
    """Of what a command gave what it printed; of everything else all."""
    return value["stdout"] if isinstance(value, dict) and set(value) == SHELL_OUTPUT else value


def readable_value(stored: bytes) -> Any:
    """A stored value as JSON for people, where a text is that text, whatever is in it, and a date its usual form."""
    value = msgspec.json.decode(stored)
    if TAG.encode() not in stored:
        return value
    try:
        text = json.dumps(decode_value(stored), default=msgspec.to_builtins)
        return without_surrogates(json.loads(text))
    except (AgentosError, TypeError, ValueError):  # of a newer version, or with keys that JSON has not
        return value


def value_in_short(stored: msgspec.Raw, limit: int = 200) -> str:
    """A stored value for people: text as it is, everything else as compact JSON, on one line and cut short."""
    if len(bytes(stored)) > 1 << 20:
        return f"{len(bytes(stored)):,} bytes"
    value = unwrap_shell_output(decode_value(stored))
    text = value if isinstance(value, str) else bytes(stored).decode(errors="replace")
    return short(printable(text.strip()), limit)


def stored_in_short(stored: bytes, limit: int, *, printed: bool) -> str:
    """The beginning of a stored value, which may be all there is of it; empty for null. `printed`: by a command."""
    if len(stored) <= _READ_WHOLE:
        value = unwrap_shell_output(readable_value(stored))
        text = "" if value is None else msgspec.json.encode(value).decode()
    else:
        text = stored[:_READ_WHOLE].decode(errors="ignore").removeprefix('{"stdout":' if printed else "")
    return short(printable(text), limit)


def output_in_short(journal: StoredRun, task: TaskView, limit: int) -> str:
    """The beginning of what a task gave; empty where it gave nothing."""
    if task.output is not msgspec.UNSET:  # of a saved state
        stored = msgspec.json.encode(task.output)
    elif task.status == "complete":
        stored = bytes(journal.facts.task(TaskId(task.id)).output)
    else:
        return ""
    return stored_in_short(stored, limit, printed=task.kind == "shell")


def held_up_text(task: TaskView, now: datetime) -> str:
    """What a task waits for before its next attempt, or why it was skipped; empty where neither is so."""
    if isinstance(task.not_before, datetime):
        after = "next attempt" if task.status == "retrying" else "goes on"
        waits = "waits for the end of a limit," if task.limit is True else after
        return f"{waits} {until(task.not_before, now)}"
    if task.status == "skipped":
        return f"because of {printable(str(task.because))}" if task.because else "its condition was false"
    return ""


def given_lines(inputs: str) -> list[str]:
    """What a gate's task would be given, as `name = value` lines; nothing where it takes nothing."""
    try:
        given = readable_value(inputs.encode()) if inputs else {}
    except msgspec.DecodeError:  # cut short when it was stored
        given = inputs
    if not isinstance(given, dict):
        text_lines = [short(line, 300) for line in printable_lines(inputs.rstrip("\n"))]
        return text_lines[: 2 * MOST_LINES] + ["…"] * (len(text_lines) > 2 * MOST_LINES)
    lines: list[str] = []
    for name, value in given.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        first, *rest = (short(line, 300) for line in printable_lines(text))
        lines += [f"{printable(name)} = {first}", *(f"  {line}" for line in rest[:MOST_LINES])]
        lines += ["  …"] if len(rest) > MOST_LINES else []
    return lines


def covers_lines(covers: Collection[str] | None, again: str) -> list[str]:
    """What an approval is about beside the task itself, and why it is asked again; nothing where nobody looked."""
    lines = [f"asks again: {short(printable(again), 500)}"] if again else []
    if covers is None:
        return lines
    names = [path for path in sorted(covers) if path != ev.ALL_FILES]
    names += ["all files of the worktree"] if ev.ALL_FILES in covers else []
    named = f"{name_some(names, MOST_LINES)} as of this question"
    files = named if covers else "no file, since the command names none that is here"
    return [*lines, f"covers {short(files, 500)}"]


def check_lines(checks: Sequence[ev.ShownCheck]) -> list[str]:
    """By what the tasks before a gate were verified; what is stale comes first."""
    stale = [check for check in checks if check.stale]
    lines: list[str] = []
    for check in (*stale, *(check for check in checks if not check.stale))[:_MOST_CHECKS]:
        result = "passed" if check.exit_code == 0 else "has no result" if check.exit_code is None else "failed"
        how = f"{result}, STALE: {check.stale}" if check.stale else result
        lines.append(short(printable(f"verify of {check.task_id}: `{shorten_command(check.command)}` {how}"), 500))
        lines += [f"  | {short(line, 200)}" for line in printable_lines(check.said)[-_SAID_LINES:] if check.said]
    if len(checks) > _MOST_CHECKS:
        lines.append(f"and {len(checks) - _MOST_CHECKS} more, {max(len(stale) - _MOST_CHECKS, 0)} of them stale")
    return lines


def verified_in_short(verified: ev.Verification) -> str:
    """How many of a task's commands of `verify` passed: `2 of 2 verified`."""
    passed = sum(check.passed for check in verified.checks)
    return f"{passed} of {len(verified.checks) + len(verified.not_run)} verified"


def evidence_lines(evidence: AttemptEvidence) -> list[str]:
    """What there is to tell whether an interrupted task ran: when, as which process, what it printed, which files."""
    process = [f"process {evidence.pid}"] if evidence.pid else []
    who = ", ".join([*process, *([f"driven by {printable(evidence.driver)}"] if evidence.driver else [])])
    ended = "" if evidence.end in ("cut off", "running") else f", {evidence.end}"
    lines = [
        f"attempt {evidence.attempt} began {local(evidence.started_at)}, last heard of "
        f"{local(evidence.last_sign_at)}{ended}{f' ({who})' if who else ''}"
    ]
    if evidence.printed:
        lines.append("the last it printed:" if evidence.printed_more else "it printed:")
        marks = {"out": "|", "err": "!"}
        lines += [f"  {marks.get(line.stream, '·')} {short(printable(line.text), 300)}" for line in evidence.printed]
    else:
        lines.append("nothing that it printed is in the logs here")
    note = short(printable(evidence.files_note), 300)
    if evidence.files_count:
        named = name_some(evidence.files, MOST_LINES)
        more = evidence.files_count - len(evidence.files)
        lines.append(f"it changed {named}{f' and {more} more' if more else ''}{f' ({note})' if note else ''}")
    elif note:
        lines.append(note)
    return lines


def waiting_text(waiting: WaitingView, now: datetime) -> str:
    """What a submitted run waits for."""
    parts = [
        f"of queue {printable(waiting.queue)}" if waiting.queue else "",
        f"from {local(waiting.ready_at)}" if waiting.ready_at > now else "",
        f"priority {waiting.priority}" if waiting.priority else "",
        f"{count(waiting.limit, 'run')} of {printable(waiting.limit_key or '')!r} at a time" if waiting.limit else "",
    ]
    told = ", ".join(part for part in parts if part)
    return f"waits for a worker{f': {told}' if told else ''}"


def usage_text(usage: ev.Usage, *, at_least: bool = False) -> str:
    """What models were paid for, in short; `at_least`: it may be more."""
    cost = f"{money(usage.cost_usd)}, " if usage.cost_usd else ""
    text = f"{cost}{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    return f"at least {text}" if at_least else text


def candidate_lines(rows: Sequence[CandidateRow]) -> list[str]:
    """The table of those that worked on a task: who won and why, what each did and cost."""
    if not rows:
        return []
    table = [("candidate", "status", "verify", "files", "lines", "turns", "paid", "time"), *map(_candidate_cells, rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
    said = ["", *(short(printable(row.reason or row.error), 100) for row in rows)]
    return [f"{line}  {why}".rstrip() for line, why in zip(lines, said, strict=True)]


def _candidate_cells(row: CandidateRow) -> tuple[str, ...]:
    paid = money(row.cost_usd) if row.cost_usd else f"{row.tokens:,} tokens" if row.tokens else "-"
    model = f" {row.model}" if row.model else ""
    name = row.agent if row.candidate == row.agent else f"{row.candidate} {row.agent}"
    return (
        short(printable(f"{name}{model}".strip()), 40),
        "won" if row.winner else row.status,
        row.verify or "-",
        str(row.files),
        f"+{row.added} -{row.removed}",
        str(row.turns) if row.turns else "-",
        paid,
        duration(row.execution_time_ms / 1000) if row.execution_time_ms else "-",
    )


_SHOWN = 60


def is_described(parameter: Parameter) -> bool:
    """Whether there is more to tell than a name and a default."""
    return bool(parameter.type or parameter.help or parameter.choices)


def parameter_cells(parameter: Parameter) -> tuple[str, str]:
    """Two columns: `port: integer = 8080`, and what it is for."""
    name = f"{parameter.name}: {parameter.type}" if parameter.type else parameter.name
    default = "(required)" if parameter.required else f"= {as_json_text(parameter.default)}"
    choices = f"One of {', '.join(map(as_json_text, parameter.choices))}." if parameter.choices else ""
    return printable(f"{name} {default}"), printable(" ".join(filter(None, (parameter.help, choices))))


def as_json_text(value: object) -> str:
    return short(msgspec.json.encode(value).decode(), _SHOWN)


_FRAME = re.compile(r'(?P<before>[\s|+]*)File "(?P<file>.+)", line (?P<line>\d+)(?P<rest>, in .+)?')
_HEADER = "Traceback (most recent call last):"
_BETWEEN = ("The above exception was", "During handling of the above")
_OF_LIBRARIES = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<frozen ")


def failure_text(error: ev.TaskFailure) -> str:
    """Type and first line, and the place in the user's code: `ValueError: no port (flow.py:12)`."""
    own = [frame for frame in map(_FRAME.fullmatch, error.traceback.splitlines()) if frame and not _is_foreign(frame)]
    return f"{error.in_short} ({_place(own[-1])}:{own[-1]['line']})" if own else error.in_short


def traceback_lines(error: ev.TaskFailure, *, verbose: bool = False) -> Iterator[str]:
    """The traceback with its causes and source lines; frames of libraries are only counted, unless `verbose`.

    Frames of AgentOS are not even stored.
    """
    hidden = 0
    margin: int | None = None
    """Deeper lines belong to a frame that is hidden."""
    for line in printable_lines(error.traceback) if error.traceback else ():
        frame = _FRAME.fullmatch(line)
        if frame is None and margin is not None and len(line) - len(line.lstrip(" |")) > margin:
            continue
        margin = None
        if frame is not None and _is_foreign(frame) and not verbose:
            hidden, margin = hidden + 1, len(frame["before"])
            continue
        if hidden:
            yield f"  … {count(hidden, 'frame')} of libraries"
            hidden = 0
        yield line if frame is None else line.replace(frame["file"], _place(frame), 1)


def raised_lines(error: ev.TaskFailure, most: int) -> list[str]:
    """Where it was raised, for under its text: the last frames, and in a line what caused it."""
    *before, last = "\n".join(traceback_lines(error)).rpartition(f"{_HEADER}\n")
    lines = list(takewhile(lambda line: line.startswith(" "), last.splitlines()))  # then comes the error itself
    causes = [line for line in "".join(before).splitlines() if line and not line.startswith((" ", *_BETWEEN, _HEADER))]
    return [*_last_frames(lines, most), *(f"  after {cause}" for cause in causes[-1:])]


def _last_frames(lines: list[str], most: int) -> list[str]:
    """The last lines, beginning with a frame: what is left of one without its place says nothing."""
    last = lines[-most:]
    begins = next((index for index, line in enumerate(last) if _FRAME.fullmatch(line)), 0)
    return last[begins:] if len(lines) > most else last


def _is_foreign(frame: re.Match[str]) -> bool:
    return _OF_LIBRARIES.search(frame["file"]) is not None


def _place(frame: re.Match[str]) -> str:
    return path_from_here(Path(frame["file"])) if frame["file"].startswith("/") else frame["file"]


MOST = 200
"""So many paths are shown to people; programs get all."""

_SIGNS = {"added": "A", "deleted": "D", "modified": "M", "retyped": "T"}


def change_lines(changes: Sequence[FileChange], most: int = MOST) -> Iterator[str]:
    """A line for each path, as `git diff --name-status` has it."""
    for change in changes[:most]:
        yield f"{_SIGNS[change.change]}  {printable(change.path)}"
    if len(changes) > most:
        yield f"… and {len(changes) - most:,} more (--json shows all)"

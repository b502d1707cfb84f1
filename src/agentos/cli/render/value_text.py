"""Stored values, inputs and usage as people read them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from agentos.cli.render.text import local, name_some, printable, printable_lines, short
from agentos.client.types import events as ev
from agentos.client.views import AttemptEvidence, money
from agentos.values import decode_value

SHELL_OUTPUT = {"stdout", "stderr", "exit_code"}
MOST_LINES = 8
_READ_WHOLE = 900
"""Bytes of a stored value that are looked at to show its beginning; of large ones a little more is read."""
"""So many more lines of a value of several are shown."""


def unwrap_shell_output(value: Any) -> Any:
    """Of what a command gave what it printed; of everything else all."""
    return value["stdout"] if isinstance(value, dict) and set(value) == SHELL_OUTPUT else value


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
        value = unwrap_shell_output(msgspec.json.decode(stored))
        text = "" if value is None else msgspec.json.encode(value).decode()
    else:
        text = stored[:_READ_WHOLE].decode(errors="ignore").removeprefix('{"stdout":' if printed else "")
    return short(printable(text), limit)


def given_lines(inputs: str) -> list[str]:
    """What a gate's task would be given, as `name = value` lines; nothing where it takes nothing."""
    try:
        given = msgspec.json.decode(inputs) if inputs else {}
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
    named = f"{name_some(sorted(covers), MOST_LINES)} as of this question"
    files = named if covers else "no file, since the command names none that is here"
    return [*lines, f"covers {short(files, 500)}"]


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


def usage_text(usage: ev.Usage) -> str:
    """What models were paid for, in short."""
    cost = f"{money(usage.cost_usd)}, " if usage.cost_usd else ""
    return f"{cost}{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"

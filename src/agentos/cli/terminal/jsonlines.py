"""Events as JSON, one per line: what `run --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TextIO

import msgspec

from agentos.cli.render.event_json import event_json
from agentos.cli.render.text import escape_json
from agentos.machine.events import Event


def event_line(event: Event) -> bytes:
    """One line of JSON, newline included; text that is no Unicode has its odd parts escaped."""
    try:
        return event_json(event) + b"\n"
    except UnicodeEncodeError:
        data = {"type": event.type, **msgspec.structs.asdict(event)}
        if not event.seq:
            del data["seq"]
        readable = _encodable(msgspec.to_builtins(data, builtin_types=(msgspec.Raw,)))
        return escape_json(msgspec.json.encode(readable)) + b"\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, (list, tuple)) else value


class BytesOut(Protocol):
    def write(self, data: bytes, /) -> object: ...

    def flush(self) -> object: ...


class JsonLines:
    """A view that prints every event of the drive."""

    wants_history = False

    def __init__(self, out: BytesOut) -> None:
        self._out = out

    def show(self, events: Sequence[Event]) -> None:
        self._out.write(b"".join(map(event_line, events)))
        self._out.flush()

    def expect(self, usual_ms: Mapping[str, float]) -> None: ...

    def wrap_stream(self, stream: TextIO) -> TextIO:
        return stream

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def close(self) -> None: ...

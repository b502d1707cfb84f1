"""Server-sent events out of bytes that arrive cut anywhere."""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")


class SseParser:
    """Gives the data of each event that is complete. Comments, ids and names of events are passed over.

    Lines may end in LF, CRLF or CR, as the standard has it; characters may be cut in two. ValueError where an event
    is no UTF-8 (nothing is replaced: a damaged answer is no answer) or exceeds `limit` bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = b""
        self._data: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[str]:
        """The events that this chunk completes."""
        buffer = self._partial + chunk
        if self._first and len(buffer) >= 3:
            self._first = False
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
        events: list[str] = []
        start = 0
        for end in _LINE_END.finditer(buffer):
            if end[0] == b"\r" and end.end() == len(buffer):
                break  # the other half of a CRLF may be on its way
            self._line(buffer[start : end.start()], events)
            start = end.end()
        self._partial = buffer[start:]
        if self._size + len(self._partial) > self._limit:
            raise ValueError(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def finish(self) -> list[str]:
        """What was begun and not ended: some servers leave out the last blank line."""
        events: list[str] = []
        self._line(self._partial.removesuffix(b"\r"), events)
        self._line(b"", events)
        self._partial = b""
        return events

    def _line(self, line: bytes, events: list[str]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data).decode())
            self._data, self._size = [], 0
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)

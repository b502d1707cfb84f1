"""What a child prints: kept within bounds, and shown live line by line."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator

from agentos.secrets import NO_SECRETS, Masker

KEEP_BYTES = 1 << 20
"""Kept of each stream: this much of its beginning, and this much of its end."""
MAX_LINE = 4_000
MAX_LINES_AT_ONCE = 200
"""Live lines shown of one read; a flood must not keep the event loop from everything else."""


class Capture:
    """One stream of a child. Memory is bounded whatever comes; `dropped` counts the bytes left out of the middle.

    Secrets are masked first: neither what is kept nor what is shown ever held one. `log` gets all of it.
    """

    def __init__(
        self,
        show: Callable[[str], None],
        *,
        head: int = KEEP_BYTES,
        tail: int = KEEP_BYTES,
        masker: Masker = NO_SECRETS,
        log: Callable[[bytes], None] | None = None,
    ) -> None:
        self._lines = LiveLines(show)
        self._mask = masker.stream()
        self._log = log
        self._head, self._tail = bytearray(), bytearray()
        self._head_limit, self._tail_limit = head, tail
        self.total = 0

    @property
    def masked(self) -> set[str]:
        """The variables whose values were masked."""
        return self._mask.found

    def feed(self, data: bytes) -> None:
        self._take(self._mask.feed(data))

    def _take(self, data: bytes) -> None:
        if not data:
            return
        if self._log is not None:
            self._log(data)
        self.total += len(data)
        self._lines.feed(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut now and then, not each time: deleting from the front moves the rest.
        if len(self._tail) > 2 * self._tail_limit + 65_536:
            del self._tail[: -self._tail_limit or len(self._tail)]

    def close(self) -> None:
        """Show the last line, which had no end."""
        self._take(self._mask.finish())
        self._lines.feed(b"", final=True)
        if len(self._tail) > self._tail_limit:
            del self._tail[: len(self._tail) - self._tail_limit]

    @property
    def dropped(self) -> int:
        return self.total - len(self._head) - len(self._tail)

    @property
    def raw(self) -> bytes:
        return bytes(self._head + self._tail)

    def text(self) -> tuple[str, bool]:
        """As text without its last newline; and whether it was UTF-8 throughout."""
        if self.dropped:
            # The cut may lie within a character.
            first, second = _without_cut_end(self._head), _without_cut_start(self._tail)
            pieces = (first, f"\n[… {self.dropped} bytes left out …]\n".encode(), second)
        else:
            pieces = (bytes(self._head), b"", bytes(self._tail))
        data = b"".join(pieces)
        try:
            text, valid = data.decode(), True
        except UnicodeDecodeError:
            text, valid = data.decode(errors="replace"), False
        return text.removesuffix("\n"), valid

    def last_lines(self, lines: int = 20, characters: int = 3_000) -> str:
        """The end of it, for an error's text."""
        end = bytes((self._tail or self._head)[-4 * characters :]).decode(errors="replace").rstrip()
        shown = "\n".join(end.splitlines()[-lines:])
        return shown if len(shown) <= characters else f"…{shown[-characters:]}"


class DocumentBuffer:
    """The first bytes of a stream, as they came: what is masked may not be read as JSON any more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.data = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        self.data += data[: self._limit - len(self.data)]


def _without_cut_end(data: bytearray) -> bytes:
    for back in range(1, min(4, len(data)) + 1):
        if data[-back] >= 0xC0:  # the first byte of a character: whole only if all that it announces is there
            length = 2 if data[-back] < 0xE0 else 3 if data[-back] < 0xF0 else 4
            return bytes(data[:-back] if length > back else data)
        if data[-back] < 0x80:
            break
    return bytes(data)


def _without_cut_start(data: bytearray) -> bytes:
    skip = 0
    while skip < min(3, len(data)) and 0x80 <= data[skip] < 0xC0:
        skip += 1
    return bytes(data[skip:])


class LiveLines:
    """Cuts a stream of bytes into lines of text as they come; long ones are cut, floods are thinned out."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        # Translating makes a lone \r a line end too: that is how programs draw their progress.
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._partial = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        text: str = self._partial + self._decoder.decode(data, final=final)
        *lines, rest = text.split("\n")
        if final and rest:
            lines.append(rest)
        self._partial = "" if final else rest[: MAX_LINE + 1]
        for line in limit_lines(lines):
            self._show(line)


def limit_lines(lines: list[str]) -> Iterator[str]:
    """Lines that came at once, as many and as long as may be shown live."""
    half = MAX_LINES_AT_ONCE // 2
    if len(lines) > MAX_LINES_AT_ONCE:
        lines = [*lines[:half], f"[… {len(lines) - 2 * half} lines not shown live …]", *lines[-half:]]
    for line in lines:
        yield line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"

"""Keeps secrets out of what this process prints while it drives a run.

What the engine stores and shows is masked already. What remains is the user's own functions, which run in this process
and print wherever they like: their `print` goes through here.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, TextIO, cast

from agentos.secrets import Masker


class Shield:
    """Masks what is written to stdout and stderr of this process, as long as it is up."""

    def __init__(self) -> None:
        self.masker = Masker.for_run((), os.environ)
        """Replaced once the run's own secrets are known."""


@contextmanager
def shield_output() -> Iterator[Shield]:
    """Put the shield up. What a function's child processes print to the terminal themselves goes past it."""
    shield = Shield()
    before = sys.stdout, sys.stderr
    masked = [_MaskedText(stream, shield) if stream is not None else None for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in masked)
    try:
        yield shield
    finally:
        sys.stdout, sys.stderr = before
        for stream in masked:
            if stream is not None:
                stream.end()


def unshield(stream: TextIO) -> TextIO:
    """The stream itself: for views, whose events are masked, and which must hear of a reader that has gone."""
    return stream._stream if isinstance(stream, _MaskedText) else stream


class _MaskedText:
    """A text stream in front of another one; everything but writing is the other's affair.

    A reader that has gone away (`| head`) is no failure of the function that prints.
    """

    def __init__(self, stream: TextIO, shield: Shield) -> None:
        self._stream = stream
        self._shield = shield
        self._mask = shield.masker.stream()
        self._masker = shield.masker
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = Lock()  # functions print from threads of their own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def buffer(self) -> Any:
        return _MaskedBuffer(self)

    def write(self, text: str) -> int:
        with self._lock, suppress(BrokenPipeError):
            if self._shield.masker:
                self._stream.write(self._mask_bytes(text.encode("utf-8", "surrogatepass")))
            else:
                self._stream.write(text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def write_bytes(self, data: bytes) -> int:
        with self._lock, suppress(BrokenPipeError):
            self._stream.write(self._mask_bytes(data))
        return len(data)

    def end(self) -> None:
        """What was held back, since it could have become a secret, did not."""
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(self._decoder.decode(self._mask.finish()))

    def _mask_bytes(self, data: bytes) -> str:
        before = b""
        if self._masker is not self._shield.masker:
            before = self._mask.finish()
            self._masker = self._shield.masker
            self._mask = self._masker.stream()
        return self._decoder.decode(before + self._mask.feed(data))


class _MaskedBuffer:
    """The binary side of such a stream."""

    def __init__(self, text: _MaskedText) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text._stream.buffer, name)

    def write(self, data: Any) -> int:
        return self._text.write_bytes(bytes(data))

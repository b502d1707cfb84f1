"""How a secret may look: in which forms its value is recognised, and where escapes stand for its characters."""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple
from urllib.parse import quote

LONGEST_ESCAPE = 24
_HEX_ESCAPE = re.compile(r"%[0-9A-F]{2}|\\u[0-9a-f]{4}")
_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"  # two escapes for one character
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = _STANDARD[:-2] + b"-_"
_ENDS_AN_ESCAPE = b"0123456789abcdefABCDEFuUx{};#\"'/"
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


# --- escapes -------------------------------------------------------------------------------------------------------


class Escapes(NamedTuple):
    """One way to write characters by their numbers."""

    mark: bytes
    """Every escape holds it; data without it needs no closer look."""
    escape: re.Pattern[bytes]
    """Repeated marks are one escape: what was escaped several times over."""
    begun: re.Pattern[bytes]
    """What may still become an escape, at the end of data."""

    def undo(self, data: bytes) -> bytes:
        """The data with the characters that its escapes stand for."""
        return self.escape.sub(lambda found: _character(found[0]), data)


@cache
def all_escapes() -> tuple[Escapes, ...]:
    """Made where there are secrets: every process would pay for it else."""
    return (
        Escapes(
            b"\\",
            re.compile(
                rb"\\{1,8}" + _HIGH + rb"\\{1,8}" + _LOW + rb"|\\{1,8}(?:u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}"
                rb"|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}|[\"'/])"
            ),
            re.compile(
                rb"(?:\\{1,8}" + _HIGH + rb")?\\{1,8}(?:[uUx]\{?[0-9a-fA-F]{0,7}|[0-3][0-7]?)?\Z"
                rb"|\\{1,8}" + _HIGH + rb"\Z"
            ),
        ),
        Escapes(b"%", re.compile(rb"%(?:25){0,3}[0-9a-fA-F]{2}"), re.compile(rb"%[0-9a-fA-F]{0,7}\Z")),
        Escapes(
            b"&",
            re.compile(rb"&(?:amp;){0,3}(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos);"),
            re.compile(rb"&[a-zA-Z0-9#;]{0,24}\Z"),
        ),
        Escapes(b"=", re.compile(rb"=[0-9A-Fa-f]{2}|=\r?\n"), re.compile(rb"=[0-9A-Fa-f\r]?\Z")),
    )


class Origins:
    """Which part of data each byte came from, once its escapes are undone."""

    def __init__(self, escapes: Escapes, data: bytes) -> None:
        parts = [(0, 0, False)]
        undone = position = 0
        for found in escapes.escape.finditer(data):
            undone += found.start() - position
            parts.append((undone, found.start(), True))
            undone += len(_character(found[0]))
            position = found.end()
            parts.append((undone, position, False))
        self._undone = [part[0] for part in parts]
        self._data = [part[1] for part in parts]
        self._is_escape = [part[2] for part in parts]

    def start(self, at: int) -> int:
        """Where the byte begins; an escape, as a whole."""
        part = bisect_right(self._undone, at) - 1
        return self._data[part] if self._is_escape[part] else self._data[part] + at - self._undone[part]

    def end(self, at: int) -> int:
        """Where the byte before this one ends."""
        part = bisect_right(self._undone, at - 1) - 1
        return self._data[part + 1] if self._is_escape[part] else self._data[part] + at - self._undone[part]


@lru_cache(maxsize=4096)  # the same few stand in every output
def _character(escape: bytes) -> bytes:
    """What an escape stands for; a soft line break for nothing."""
    text = escape.lstrip(b"\\%&=")
    if text in (b"\n", b"\r\n"):
        return b""
    if escape[:1] in b"%=":
        return bytes([int(text[-2:], 16)])
    if escape[:1] == b"&":
        text = text.removesuffix(b";").rpartition(b"amp;")[2]
        if text in _NAMED:
            return _NAMED[text]
        return _encode_code_point(int(text[2:], 16) if text[1:2] in b"xX" else int(text[1:]))
    if text[:1] == b"x":
        return bytes([int(text[1:], 16)])
    if text[:1] == b"u" and b"\\" in text:  # two escapes for one character, as UTF-16 has it
        return _encode_code_point(0x10000 + ((int(text[1:5], 16) - 0xD800) << 10) + int(text[-4:], 16) - 0xDC00)
    if text[:1] in b"uU":
        return _encode_code_point(int(text[1:].strip(b"{}"), 16))
    if text[:1].isdigit():
        return bytes([int(text, 8)])
    return text


def _encode_code_point(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass") if number < 0x110000 else b"\xff"


# --- forms ---------------------------------------------------------------------------------------------------------


def texts_in(value: str, least: int) -> Iterable[str]:
    """The value as it is; of one in several lines each of them as well, where it has `least` characters."""
    whole = [value, value.strip()]
    # Of a key in several lines each line is as secret as the whole; what marks its ends is not.
    whole += [line.strip() for line in value.splitlines() if not line.lstrip().startswith("-----")]
    return dict.fromkeys(one for one in whole if len(one) >= min(len(value), least))


def raw_form(text: str) -> bytes:
    """The bytes of a text; of a variable that is no UTF-8 those it has, which Python shows as surrogates."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def written_forms(text: str) -> Iterator[bytes]:
    """Every form that is recognised as such, but for base64; the plain one first."""
    raw = raw_form(text)
    yield raw
    for written in {one.encode("utf-8", "surrogatepass") for one in _quoted_forms(text, raw)}:
        # Else it is found as escaped, unless its beginning is taken for the end of an escape: 100%ab%2Fcd for ab/cd.
        if written[:1] in _ENDS_AN_ESCAPE or all(escapes.undo(written) != raw for escapes in all_escapes()):
            yield written
    yield raw.hex().encode()
    yield raw.hex().upper().encode()


def _quoted_forms(text: str, raw: bytes) -> Iterator[str]:
    """As it is written in URLs, in JSON and in Python."""
    for safe in ("", "/", "!'()*", "!'()*/;:@&=+$,#"):
        quoted = quote(raw, safe=safe)
        for one in (quoted, quoted.replace("%20", "+")):
            yield one
            yield _HEX_ESCAPE.sub(lambda found: found[0].lower(), one)
    for dumped in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        for one in (dumped[1:-1], dumped[1:-1].replace("/", "\\/")):
            yield one
            yield _HEX_ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), one)
    yield repr(text)[1:-1]
    yield repr(raw)[2:-1]
    yield text.replace("'", "'\\''")  # as a shell quotes it


def base64_forms(raw: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """The characters that the value alone decides, for each of the three places it can have among others; with each,
    the same and a character more at an end, which the value shares with what stands there."""
    for encode, alphabet in ((b64encode, _STANDARD), (urlsafe_b64encode, _URL_SAFE)):
        for before in range(3):
            whole = encode(b"\0" * before + raw)
            first, last = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
            form = whole[first:last]
            longer = []
            if before:
                own = 1 << (4, 2)[before - 1]  # what the lower bits of the character before can say
                low = alphabet.index(whole[first - 1]) % own
                longer += [bytes([character]) + form for character in alphabet[low::own]]
            if rest := whole[last:]:
                others = 1 << (6 - (before + len(raw)) * 8 % 6)
                high = alphabet.index(rest[0]) // others * others
                longer += [form + bytes([character]) for character in alphabet[high : high + others]]
                longer += [form + rest[:end] for end in range(2, len(rest) + 1)]
            yield form, longer
        # A long one stands in lines, as programs print it that encode the value alone.
        encoded = encode(raw)[: len(raw) * 8 // 6]
        for width in (64, 76):
            lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
            if len(lines) > 1:
                yield b"\n".join(lines), []
                yield b"\r\n".join(lines), []


def json_form(form: bytes) -> bytes:
    """As it stands inside a text of JSON."""
    try:
        return json.dumps(form.decode(), ensure_ascii=False)[1:-1].encode()
    except UnicodeError:
        return form

"""Secrets: which variables hold one, and how their values are kept out of everything that is stored or shown.

A value is masked as `[secret:NAME]`, wherever it stands as it is, in hex, base64-encoded (any alignment, standard or
URL-safe alphabet, with the characters at its ends that it shares with its neighbours), or escaped: `\\u0041` and the
like as JSON, JavaScript, Python and C have it, `%41`, `&#65;`, `=41`; each of its characters or only some, escaped
once or several times over. Nothing else is recognised: a value that was reversed, hashed, compressed or cut in pieces
is not the value any more.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

LOOKS_SECRET = 8
"""Characters a value must have at least where only the variable's name says that it is a secret."""
DECLARED_SECRET = 4
"""The same where somebody declared it: anything shorter would mask half of every text."""

_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(?:^|_)PASS(?:$|_)|_PWD$"
    r"|(?:API|PRIVATE|ACCESS|AUTH|SIGNING|ENCRYPTION|MASTER|DEPLOY|SSH|ACCOUNT|SERVICE)_?KEY",
    re.IGNORECASE,
)
_NO_SECRET_NAME = re.compile(
    r"_(?:FILE|PATH|DIR|DIRECTORY|SOCK|SOCKET)$|^MAX_.*TOKENS|_MAX_.*TOKENS|TOKENIZER|^AGENTOS_", re.IGNORECASE
)
"""Names of places, and of limits on how much a model may say."""
_PASSWORD_IN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s:@]*:([^/?#\s]+)@")
_HEX_ESCAPE = re.compile(r"%[0-9A-F]{2}|\\u[0-9a-f]{4}")
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_FENCES = "*#~^|!@"

Bytes = bytes
Span = tuple[int, int, str]
"""From, to, and whose value it is."""


class _Escapes(NamedTuple):
    """One way to write characters by their numbers."""

    mark: Bytes
    """Every escape holds it; data without it needs no closer look."""
    escape: re.Pattern[Bytes]
    """Each is undone by `_unescaped`. Repeated marks are one escape: what was escaped several times over."""
    begun: re.Pattern[Bytes]
    """What may still become an escape, at the end of data."""


_HIGH, _LOW = rb"u[dD][89abAB][0-9a-fA-F]{2}", rb"u[dD][c-fC-F][0-9a-fA-F]{2}"  # two escapes for one character
_LONGEST_ESCAPE = 24
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = _STANDARD[:-2] + b"-_"
_NAMED = {b"amp": b"&", b"lt": b"<", b"gt": b">", b"quot": b'"', b"apos": b"'"}


@cache
def _escapes() -> tuple[_Escapes, ...]:
    """Made where there are secrets: every process would pay for it else."""
    return (
        _Escapes(
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
        _Escapes(b"%", re.compile(rb"%(?:25){0,3}[0-9a-fA-F]{2}"), re.compile(rb"%[0-9a-fA-F]{0,7}\Z")),
        _Escapes(
            b"&",
            re.compile(rb"&(?:amp;){0,3}(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|amp|lt|gt|quot|apos);"),
            re.compile(rb"&[a-zA-Z0-9#;]{0,24}\Z"),
        ),
        _Escapes(b"=", re.compile(rb"=[0-9A-Fa-f]{2}|=\r?\n"), re.compile(rb"=[0-9A-Fa-f\r]?\Z")),
    )


def looks_secret(name: str) -> bool:
    """Whether a variable of this name is taken for a secret without being declared."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


class Masker:
    """Takes the values of known secrets out of text, bytes, values and streams. Immutable, safe in any thread.

    What comes out holds none of them, and masking it again changes nothing. Without secrets every call gives back what
    it was given. `bool(masker)` says whether there is anything to mask.
    """

    __slots__ = (
        "_begins",
        "_firsts",
        "_forms",
        "_longer",
        "_longest",
        "_longest_plain",
        "_masks",
        "_owners",
        "_plain",
        "_plain_begins",
        "_plain_firsts",
        "_plain_sorted",
        "_secrets",
        "_shortest",
        "_sorted",
        "_stored",
        "too_short",
    )

    def __init__(self, secrets: Iterable[tuple[str, str]] = (), too_short: Iterable[str] = ()) -> None:
        owners: dict[bytes, str] = {}
        plain: dict[bytes, str] = {}
        longer: dict[bytes, list[bytes]] = {}
        self._secrets = tuple(secrets)
        for name, value in self._secrets:
            for text in _texts(value):
                plain.setdefault(_raw(text), name)
                for form in _forms(text):
                    owners.setdefault(form, name)
                for form, with_ends in _base64(_raw(text)):
                    owners.setdefault(form, name)
                    longer.setdefault(form, []).extend(with_ends)
        self._owners = owners
        self._plain = plain
        self._plain_firsts = frozenset(raw[0] for raw in plain)
        self._plain_begins = frozenset(raw[:4] for raw in plain)
        self._plain_sorted = sorted(plain)
        self._longest_plain = max(map(len, plain), default=0)
        self._longer = longer
        """Of each base64 form those with a character more at an end: looked for where that form was found."""
        self._forms = tuple(owners)
        self._sorted = sorted({*owners, *(form for forms in longer.values() for form in forms)})
        self._firsts = frozenset(form[0] for form in self._sorted)
        self._begins = frozenset(form[:4] for form in self._sorted)
        self._longest = max(map(len, self._sorted), default=0)
        self._shortest = min(map(len, owners), default=0)
        self._stored = tuple({escaped for form in owners for escaped in (form, _json_escaped(form))})
        self._masks = _masks(owners)
        self.too_short = tuple(too_short)
        """Declared secrets that are set, and too short to be told from other text."""

    @classmethod
    def for_run(cls, names: Iterable[str], env: Mapping[str, str]) -> Masker:
        """For the variables named, and all others in `env` that look like secrets. Those not set count for nothing."""
        secrets: list[tuple[str, str]] = []
        too_short: list[str] = []
        declared = dict.fromkeys(names)
        for name in declared:
            value = env.get(name, "")
            if len(value) >= DECLARED_SECRET:
                secrets.append((name, value))
            elif value:
                too_short.append(name)
        for name, value in env.items():
            if len(value) < LOOKS_SECRET or name in declared:
                continue
            if looks_secret(name):
                secrets.append((name, value))
            elif "://" in value:
                inside = _PASSWORD_IN_URL.findall(value)
                passwords = {form for found in inside for form in (found, unquote(found))}
                secrets += [(name, found) for found in passwords if len(found) >= LOOKS_SECRET]
        return cls(secrets, too_short)

    def with_secret(self, name: str, value: str) -> Masker:
        """One that masks this value as well; itself where it does already, or where the value is too short."""
        if len(value) < DECLARED_SECRET or value.encode("utf-8", "surrogatepass") in self._owners:
            return self
        return Masker((*self._secrets, (name, value)), self.too_short)

    def __bool__(self) -> bool:
        return bool(self._forms)

    @property
    def names(self) -> tuple[str, ...]:
        """The variables whose values are masked."""
        return tuple(dict.fromkeys(self._owners.values()))

    # --- what is whole ---------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """The text with every secret masked; the same object where there is none."""
        return self._text(text, set()) if self._forms else text

    def bytes(self, data: Bytes) -> Bytes:
        """The bytes with every secret masked; the same object where there is none."""
        return self._bytes(data, set()) if self._forms else data

    def value(self, value: Any) -> tuple[Any, bool]:
        """A value of JSON types, bytes and scalars with every secret in it masked; and whether that changed it.

        A number that shows a secret becomes text. Parts that did not change are shared with the value given.
        """
        masked, found = self.value_and_names(value)
        return masked, bool(found)

    def value_and_names(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """As `value`, with the names of the variables that were found."""
        if not self._forms:
            return value, ()
        found: set[str] = set()
        return self._value(value, found), tuple(sorted(found))

    def names_in(self, data: Bytes) -> tuple[str, ...]:
        """The variables whose values stand in the bytes."""
        return tuple(sorted({self._owners[form] for form in self._forms if form in data}))

    def may_be_in(self, stored: Bytes) -> bool:
        """Whether a value in JSON form might hold a secret. A look that is cheap, and misses none."""
        if len(stored) >= self._shortest:
            for form in self._stored:  # any() takes twice as long, and this is asked about everything that is stored
                if form in stored:
                    return True
            return next(self._escaped_spans(stored), None) is not None
        return False

    def mask_of(self, name: str) -> str:
        """What stands in place of a variable's value."""
        return self._masks[name]

    def _text(self, text: str, found: set[str]) -> str:
        data = text.encode("utf-8", "surrogatepass")
        masked = self._bytes(data, found)
        if masked is data:
            return text
        try:
            return masked.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:  # a secret that is no UTF-8 began in the middle of a character
            return masked.decode("utf-8", "replace")

    def _bytes(self, data: Bytes, found: set[str]) -> Bytes:
        spans = self._spans(data)
        if not spans:
            return data
        pieces, position = [], 0
        for start, end, name in spans:
            pieces += [data[position:start], self._masks[name].encode()]
            position = end
            found.add(name)
        return b"".join((*pieces, data[position:]))

    def _value(self, value: Any, found: set[str]) -> Any:
        if isinstance(value, str):
            return self._text(value, found)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(bytes(value), found)
        if isinstance(value, Mapping):
            return self._map(value, found)
        if isinstance(value, (list, tuple)):
            items = [self._value(item, found) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return items if isinstance(value, list) else tuple(items)
        shown = hex(value) if isinstance(value, int) and value.bit_length() > 1024 else str(value)
        masked = self._text(shown, found)
        return value if masked == shown else masked

    def _map(self, value: Mapping[Any, Any], found: set[str]) -> Mapping[Any, Any]:
        result: dict[Any, Any] = {}
        for key, item in value.items():
            name = self._value(key, found)
            while name in result and name is not key:  # a secret and its base64 were keys of the same map
                name = f"{name}+"
            result[name] = self._value(item, found)
        same = all(new is old for new, old in zip(result, value, strict=True))
        return value if same and all(result[key] is value[key] for key in result) else result

    def _spans(self, data: Bytes) -> list[Span]:
        """Where secrets stand, in order; those that overlap are one, named by the one that begins it."""
        found = [
            (at, at + len(longest), self._owners[form])
            for form in self._forms
            if form in data  # a tenth of the cost of a regular expression, and nearly always the end of it
            for longest in (form, *self._longer.get(form, ()))
            for at in _places(longest, data)
        ]
        found += self._escaped_spans(data)
        if len(found) < 2:
            return found
        found.sort(key=lambda span: (span[0], -span[1]))
        spans = found[:1]
        for start, end, name in found[1:]:
            last = spans[-1]
            if start >= last[1]:
                spans.append((start, end, name))
            elif end > last[1]:
                spans[-1] = (last[0], end, last[2])
        return spans

    def _escaped_spans(self, data: Bytes) -> Iterator[Span]:
        """Where secrets stand of which some characters, or all, are escaped."""
        for escapes in _escapes():
            if escapes.mark not in data:
                continue
            undone = escapes.escape.sub(_unescape, data)
            for raw, name in self._plain.items():
                if raw in undone:
                    origins = _Origins(escapes, data)
                    for at in _places(raw, undone):
                        yield origins.start(at), origins.end(at + len(raw)), name

    # --- what comes in chunks --------------------------------------------------------------------------------------

    def stream(self) -> MaskedStream:
        """A masker for one stream of bytes that arrives in chunks cut anywhere."""
        return MaskedStream(self)

    def _undecided_start(self, data: Bytes) -> int:
        """Where the end of the data begins that could still become a secret; its length where there is none."""
        undecided = len(data)
        for at in range(max(0, len(data) - self._longest + 1), len(data)):
            if data[at] not in self._firsts:
                continue
            begins = data[at : at + 4]
            if (begins in self._begins or len(begins) < 4) and self._goes_on(data[at:]):
                undecided = at
                break
        return min([undecided, *self._undecided_escapes(data)])

    def _undecided_escapes(self, data: Bytes) -> Iterator[int]:
        longest = self._longest_plain
        end = data[-_LONGEST_ESCAPE * (longest + 2) :]
        before = len(data) - len(end)
        for escapes in _escapes():
            if escapes.mark not in end:
                continue
            if begun := escapes.begun.search(end, max(0, len(end) - 2 * _LONGEST_ESCAPE)):
                yield before + begun.start()
            whole = end[: begun.start()] if begun else end
            undone = escapes.escape.sub(_unescape, whole)
            for at in range(max(0, len(undone) - longest + 1), len(undone)):
                if undone[at] not in self._plain_firsts:
                    continue
                begins = undone[at : at + 4]
                if (begins in self._plain_begins or len(begins) < 4) and self._begins_plain(undone[at:]):
                    yield before + _Origins(escapes, whole).start(at)
                    break

    def _begins_plain(self, begun: Bytes) -> bool:
        first = bisect_left(self._plain_sorted, begun)
        return first < len(self._plain_sorted) and self._plain_sorted[first].startswith(begun)

    def _goes_on(self, begun: Bytes) -> bool:
        next_form = bisect_right(self._sorted, begun)
        return next_form < len(self._sorted) and self._sorted[next_form].startswith(begun)

    def cut_end(self, text: str, least: int = 4) -> str:
        """The text without a secret's beginning at its very end, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        at = self._undecided_start(data) if self._forms else len(data)
        return data[:at].decode("utf-8", "replace") if len(data) - at >= least else text

    def cut_start(self, text: str, least: int = 4) -> str:
        """The text without a secret's end at its very start, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        for length in range(min(self._longest - 1, len(data)), least - 1, -1):
            if any(form.endswith(data[:length]) for form in self._sorted):
                return data[length:].decode("utf-8", "replace")
        return text


class MaskedStream:
    """Masks one stream: the chunks that come out, joined, are what masking the whole at once would give.

    Only what could still become a secret is held back, and never more than the longest one is.
    """

    __slots__ = ("_covered", "_masker", "_tail", "found")

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._tail = b""
        self._covered = 0  # so much of the tail belongs to a secret whose mask is out already
        self.found: set[str] = set()
        """The variables masked so far."""

    def feed(self, data: bytes) -> bytes:
        """What is settled now."""
        if not self._masker:
            return data
        masker, data = self._masker, self._tail + data
        undecided = masker._undecided_start(data)
        pieces, position = [], self._covered
        for start, end, name in masker._spans(data):
            if start >= undecided:
                break  # a longer one may yet begin at the same place
            if start >= position:
                pieces += [data[position:start], masker.mask_of(name).encode()]
                self.found.add(name)
            position = max(position, end)
        if position < undecided:
            pieces.append(data[position:undecided])
        self._tail, self._covered = data[undecided:], max(0, position - undecided)
        return b"".join(pieces)

    def finish(self) -> bytes:
        """The rest: nothing follows any more."""
        rest, covered = self._tail, self._covered
        self._tail, self._covered = b"", 0
        pieces, position = [], covered
        for start, end, name in self._masker._spans(rest):
            if start >= position:
                pieces += [rest[position:start], self._masker.mask_of(name).encode()]
                self.found.add(name)
            position = max(position, end)
        return b"".join((*pieces, rest[position:]))


# --- how a value may look ------------------------------------------------------------------------------------------


def _places(form: bytes, data: bytes) -> Iterator[int]:
    at = data.find(form)
    while at >= 0:
        yield at
        at = data.find(form, at + 1)


class _Origins:
    """Which part of data each byte came from, once its escapes are undone."""

    def __init__(self, escapes: _Escapes, data: bytes) -> None:
        self._undone: list[int] = [0]
        self._data: list[int] = [0]
        self._is_escape: list[bool] = [False]
        undone = position = 0
        for found in escapes.escape.finditer(data):
            undone += found.start() - position
            self._add(undone, found.start(), is_escape=True)
            undone += len(_unescape(found))
            position = found.end()
            self._add(undone, position, is_escape=False)

    def _add(self, undone: int, position: int, *, is_escape: bool) -> None:
        self._undone.append(undone)
        self._data.append(position)
        self._is_escape.append(is_escape)

    def start(self, at: int) -> int:
        """Where the byte begins; an escape, as a whole."""
        part = bisect_right(self._undone, at) - 1
        return self._data[part] if self._is_escape[part] else self._data[part] + at - self._undone[part]

    def end(self, at: int) -> int:
        """Where the byte before this one ends."""
        part = bisect_right(self._undone, at - 1) - 1
        return self._data[part + 1] if self._is_escape[part] else self._data[part] + at - self._undone[part]


def _unescape(found: re.Match[bytes]) -> bytes:
    return _character(found[0])


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
    if text[:1] == b"u" and b"\\" in text:
        return _encode_code_point(_join_surrogates(text))
    if text[:1] in b"uU":
        return _encode_code_point(int(text[1:].strip(b"{}"), 16))
    if text[:1].isdigit():
        return bytes([int(text, 8)])
    return text


def _join_surrogates(text: bytes) -> int:
    """The character of two escapes, as UTF-16 has it."""
    return 0x10000 + ((int(text[1:5], 16) - 0xD800) << 10) + int(text[-4:], 16) - 0xDC00


def _encode_code_point(number: int) -> bytes:
    return chr(number).encode("utf-8", "surrogatepass") if number < 0x110000 else b"\xff"


def _texts(value: str) -> Iterable[str]:
    """The value as it is; of one in several lines each of them as well."""
    whole = [value, value.strip()]
    # Of a key in several lines each line is as secret as the whole; what marks its ends is not.
    whole += [line.strip() for line in value.splitlines() if not line.lstrip().startswith("-----")]
    least = min(len(value), LOOKS_SECRET)
    return dict.fromkeys(one for one in whole if len(one) >= least)


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape" if _from_bytes(text) else "surrogatepass")


def _forms(text: str) -> Iterator[bytes]:
    """Every form that is recognised as such, but for base64; the plain one first."""
    raw = _raw(text)
    yield raw
    for written in {one.encode("utf-8", "surrogatepass") for one in _quoted_forms(text, raw)}:
        if all(escapes.escape.sub(_unescape, written) != raw for escapes in _escapes()):  # else it is found as escaped
            yield written
    yield raw.hex().encode()
    yield raw.hex().upper().encode()


def _from_bytes(text: str) -> bool:
    """Whether this is how Python shows a variable that is no UTF-8."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


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


def _base64(raw: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """The characters that the value alone decides, for each of the three places it can have among others; with each,
    the same and a character more at an end, which the value shares with what stands there."""
    for encode, alphabet in ((b64encode, _STANDARD), (urlsafe_b64encode, _URL_SAFE)):
        for before in range(3):
            yield _base64_at(raw, before, encode, alphabet)
        yield from ((wrapped, []) for wrapped in _wrap_lines(encode(raw)[: len(raw) * 8 // 6]))


def _base64_at(raw: bytes, before: int, encode: Callable[[bytes], bytes], alphabet: bytes) -> tuple[bytes, list[bytes]]:
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
    return form, longer


def _wrap_lines(encoded: bytes) -> Iterator[bytes]:
    """A long one in lines, as programs print it that encode the value alone."""
    for width in (64, 76):
        lines = [encoded[at : at + width] for at in range(0, len(encoded), width)]
        if len(lines) > 1:
            yield b"\n".join(lines)
            yield b"\r\n".join(lines)


def _json_escaped(form: bytes) -> bytes:
    try:
        return json.dumps(form.decode(), ensure_ascii=False)[1:-1].encode()
    except UnicodeError:
        return form


def _masks(owners: Mapping[bytes, str]) -> dict[str, str]:
    """What stands for each variable's value.

    A secret could come about anew where a mask meets the text around it, but only one that holds the mask's first or
    last character, or lies within it. Where one does, a shorter mask is taken that none of them shares a character
    with.
    """
    named = {name: f"[secret:{_UNSAFE_NAME.sub('_', name)}]" for name in owners.values()}
    texts = [mask.encode() for mask in named.values()]
    if not any(b"[" in form or b"]" in form or any(form in text for text in texts) for form in owners):
        return named
    fences = (*_FENCES, *map(chr, range(0x2580, 0x2600)))
    for fence in fences:
        ends = {fence.encode()[:1], fence.encode()[-1:]}
        if not any(end in form for form in owners for end in ends):
            return dict.fromkeys(named, fence * 3)
    return dict.fromkeys(named, "***")


NO_SECRETS = Masker()

"""Secrets: which variables hold one, and how their values are kept out of everything that is stored or shown.

A value is masked as `[secret:NAME]`, wherever it stands as it is, base64-encoded (any alignment, standard or URL-safe
alphabet), URL-encoded, or escaped as JSON and Python do inside texts. Nothing else is recognised: a value that was
reversed, hashed, compressed or cut in pieces is not the value any more.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
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
_FENCES = "*#~^|=!@"

Bytes = bytes
Span = tuple[int, int, str]
"""From, to, and whose value it is."""


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
        "_longest",
        "_masks",
        "_owners",
        "_secrets",
        "_shortest",
        "_sorted",
        "_stored",
        "too_short",
    )

    def __init__(self, secrets: Iterable[tuple[str, str]] = (), too_short: Iterable[str] = ()) -> None:
        owners: dict[bytes, str] = {}
        self._secrets = tuple(secrets)
        for name, value in self._secrets:
            for form in _forms(value):
                owners.setdefault(form, name)
        self._owners = owners
        self._forms = tuple(owners)
        self._sorted = sorted(owners)
        self._firsts = frozenset(form[0] for form in owners)
        self._begins = frozenset(form[:4] for form in owners)
        self._longest = max(map(len, owners), default=0)
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

    def knowing(self, name: str, value: str) -> Masker:
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
        masked, found = self.masked(value)
        return masked, bool(found)

    def masked(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """As `value`, with the names of the variables that were found."""
        if not self._forms:
            return value, ()
        found: set[str] = set()
        return self._value(value, found), tuple(sorted(found))

    def found_in(self, data: Bytes) -> tuple[str, ...]:
        """The variables whose values stand in the bytes."""
        return tuple(sorted({self._owners[form] for form in self._forms if form in data}))

    def may_be_in(self, stored: Bytes) -> bool:
        """Whether a value in JSON form might hold a secret. A look that is cheap, and misses none."""
        if len(stored) >= self._shortest:
            for form in self._stored:  # any() takes twice as long, and this is asked about everything that is stored
                if form in stored:
                    return True
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
            (at, at + len(form), self._owners[form])
            for form in self._forms
            if form in data  # a tenth of the cost of a regular expression, and nearly always the end of it
            for at in _places(form, data)
        ]
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

    # --- what comes in chunks --------------------------------------------------------------------------------------

    def stream(self) -> MaskedStream:
        """A masker for one stream of bytes that arrives in chunks cut anywhere."""
        return MaskedStream(self)

    def _undecided(self, data: Bytes) -> int:
        """Where the end of the data begins that could still become a secret; its length where there is none."""
        for at in range(max(0, len(data) - self._longest + 1), len(data)):
            if data[at] not in self._firsts:
                continue
            begins = data[at : at + 4]
            if (begins in self._begins or len(begins) < 4) and self._goes_on(data[at:]):
                return at
        return len(data)

    def _goes_on(self, begun: Bytes) -> bool:
        next_form = bisect_right(self._sorted, begun)
        return next_form < len(self._sorted) and self._sorted[next_form].startswith(begun)

    def cut_end(self, text: str, least: int = 4) -> str:
        """The text without a secret's beginning at its very end, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        at = self._undecided(data) if self._forms else len(data)
        return data[:at].decode("utf-8", "replace") if len(data) - at >= least else text

    def cut_start(self, text: str, least: int = 4) -> str:
        """The text without a secret's end at its very start, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        for length in range(min(self._longest - 1, len(data)), least - 1, -1):
            if any(form.endswith(data[:length]) for form in self._forms):
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
        undecided = masker._undecided(data)
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


def _forms(value: str) -> Iterator[bytes]:
    """Every form of a secret's value that is recognised, the plain one first."""
    whole = [value, value.strip()]
    # Of a key in several lines each line is as secret as the whole; what marks its ends is not.
    whole += [line.strip() for line in value.splitlines() if not line.lstrip().startswith("-----")]
    least = min(len(value), LOOKS_SECRET)
    for text in dict.fromkeys(one for one in whole if len(one) >= least):
        raw = text.encode("utf-8", "surrogateescape" if _from_bytes(text) else "surrogatepass")
        yield raw
        for written in _written(text, raw):
            yield written.encode("utf-8", "surrogatepass")
        yield from _base64(raw)


def _from_bytes(text: str) -> bool:
    """Whether this is how Python shows a variable that is no UTF-8."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _written(text: str, raw: bytes) -> Iterator[str]:
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


def _base64(raw: bytes) -> Iterator[bytes]:
    """The characters that the value alone decides, for each of the three places it can have among others."""
    for before in range(3):
        first, last = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
        for encode in (b64encode, urlsafe_b64encode):
            yield encode(b"\0" * before + raw)[first:last]


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

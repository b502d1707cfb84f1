"""Secrets: where their values come from, and how they are kept out of everything that is stored or shown.

A value is masked as `[secret:NAME]`, wherever it stands as it is, in hex, base64-encoded (any alignment, standard or
URL-safe alphabet, with the characters at its ends that it shares with its neighbours), or escaped: `\\u0041` and the
like as JSON, JavaScript, Python and C have it, `%41`, `&#65;`, `=41`; each of its characters or only some, escaped
once or several times over. Nothing else is recognised: a value that was reversed, hashed, compressed or cut in pieces
is not the value any more.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from agentos.secret_forms import (
    LONGEST_ESCAPE,
    Origins,
    all_escapes,
    base64_forms,
    json_form,
    raw_form,
    texts_in,
    written_forms,
)

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
_HEADERS = re.compile(r"^OTEL_EXPORTER_OTLP_(?:[A-Z]+_)?HEADERS$")
_KEY_IN_HEADER = 16
"""Characters of a header's value that is taken for a key; shorter ones are names of tenants and the like."""
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]")
_FENCES = "*#~^|!@"

Bytes = bytes
Span = tuple[int, int, str]
"""From, to, and whose value it is."""


class SecretSource(Protocol):
    """Where the values of secrets come from. Nothing is kept: each question is answered as things are now."""

    def get(self, name: str) -> str | None:
        """The value of that name; None where there is none."""
        ...

    def origin(self, name: str) -> str:
        """Where the value is, or would be, to stand after "set in"."""
        ...

    def names(self) -> Iterable[str]:
        """Every name that has a value."""
        ...


class EnvironmentSecrets:
    """Secrets in environment variables: those of this process, unless others are given."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def get(self, name: str) -> str | None:
        return self._environ.get(name)

    def origin(self, name: str) -> str:
        return "the environment"

    def names(self) -> Iterable[str]:
        return tuple(self._environ)


ENVIRONMENT: SecretSource = EnvironmentSecrets()


def looks_secret(name: str) -> bool:
    """Whether a variable of this name is taken for a secret without being declared."""
    return _SECRET_NAME.search(name) is not None and _NO_SECRET_NAME.search(name) is None


class Masker:
    """Takes the values of known secrets out of text, bytes, values and streams. Immutable, safe in any thread.

    What comes out holds none of them, and masking it again changes nothing. Without secrets every call gives back what
    it was given. `bool(masker)` says whether there is anything to mask.
    """

    def __init__(self, secrets: Iterable[tuple[str, str]] = (), too_short: Iterable[str] = ()) -> None:
        owners: dict[bytes, str] = {}
        plain: dict[bytes, str] = {}
        longer: dict[bytes, list[bytes]] = {}
        self._secrets = tuple(secrets)
        for name, value in self._secrets:
            for text in texts_in(value, LOOKS_SECRET):
                plain.setdefault(raw_form(text), name)
                for form in written_forms(text):
                    owners.setdefault(form, name)
                for form, with_ends in base64_forms(raw_form(text)):
                    owners.setdefault(form, name)
                    longer.setdefault(form, []).extend(with_ends)
        self._owners = owners
        """The variable of each form that is looked for."""
        self._longer = longer
        """Of each base64 form those with a character more at an end: looked for where that form was found."""
        self._begins = _Beginnings({*owners, *(form for forms in longer.values() for form in forms)})
        self._plain = plain
        """The variable of each value as it is: looked for where escapes were undone."""
        self._plain_begins = _Beginnings(plain, whole=True)
        self._shortest = min(map(len, owners), default=0)
        self._stored = tuple({stored for form in owners for stored in (form, json_form(form))})
        self._masks = _masks(owners)
        self.too_short = tuple(too_short)
        """Declared secrets that are set, and too short to be told from other text."""

    @classmethod
    def for_run(cls, names: Iterable[str] = (), source: SecretSource = ENVIRONMENT) -> Masker:
        """For the secrets named, and all others of the source that look like some. Those not set count for nothing."""
        secrets: list[tuple[str, str]] = []
        too_short: list[str] = []
        declared = dict.fromkeys(names)
        for name in declared:
            value = source.get(name) or ""
            if len(value) >= DECLARED_SECRET:
                secrets.append((name, value))
            elif value:
                too_short.append(name)
        for name in source.names():
            value = source.get(name) or ""
            if len(value) < LOOKS_SECRET or name in declared:
                continue
            if looks_secret(name):
                secrets.append((name, value))
            elif _HEADERS.search(name):
                words = [word for pair in value.split(",") for word in unquote(pair.partition("=")[2]).split()]
                secrets += [(name, value), *((name, word) for word in words if len(word) >= _KEY_IN_HEADER)]
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
        return bool(self._owners)

    @property
    def names(self) -> tuple[str, ...]:
        """The variables whose values are masked."""
        return tuple(dict.fromkeys(self._owners.values()))

    # --- what is whole ---------------------------------------------------------------------------------------------

    def text(self, text: str) -> str:
        """The text with every secret masked; the same object where there is none."""
        return self._text(text, set()) if self._owners else text

    def bytes(self, data: Bytes) -> Bytes:
        """The bytes with every secret masked; the same object where there is none."""
        return self._bytes(data, set()) if self._owners else data

    def value_and_names(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """A value of JSON types, bytes and scalars with every secret in it masked; and whose values were found.

        A number that shows a secret becomes text. Parts that did not change are shared with the value given.
        """
        if not self._owners:
            return value, ()
        found: set[str] = set()
        return self._value(value, found), tuple(sorted(found))

    def names_in(self, data: Bytes) -> tuple[str, ...]:
        """The variables whose values stand in the bytes."""
        return tuple(sorted({name for form, name in self._owners.items() if form in data}))

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
        return self._replace(data, spans, 0, len(data), found)[0] if spans else data

    def _replace(
        self, data: Bytes, spans: list[Span], position: int, undecided: int, found: set[str]
    ) -> tuple[Bytes, int]:
        """The data from `position` to where it is `undecided`, each span masked; and how far the last span reaches."""
        pieces: list[Bytes] = []
        for start, end, name in spans:
            if start >= undecided:
                break  # a longer one may yet begin at the same place
            if start >= position:
                pieces += [data[position:start], self._masks[name].encode()]
                found.add(name)
            position = max(position, end)
        if position < undecided:
            pieces.append(data[position:undecided])
        return b"".join(pieces), position

    def _value(self, value: Any, found: set[str]) -> Any:
        if isinstance(value, str):
            return self._text(value, found)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(bytes(value), found)
        if isinstance(value, Mapping):
            result: dict[Any, Any] = {}
            for key, item in value.items():
                name = self._value(key, found)
                while name in result and name is not key:  # a secret and its base64 were keys of the same map
                    name = f"{name}+"
                result[name] = self._value(item, found)
            same = all(new is old for new, old in zip(result, value, strict=True))
            return value if same and all(result[key] is value[key] for key in result) else result
        if isinstance(value, (list, tuple)):
            items = [self._value(item, found) for item in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return items if isinstance(value, list) else tuple(items)
        shown = hex(value) if isinstance(value, int) and value.bit_length() > 1024 else str(value)
        masked = self._text(shown, found)
        return value if masked == shown else masked

    def _spans(self, data: Bytes) -> list[Span]:
        """Where secrets stand, in order; those that overlap are one, named by the one that begins it."""
        found = [
            (at, at + len(longest), name)
            for form, name in self._owners.items()
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
        for escapes in all_escapes():
            if escapes.mark not in data:
                continue
            undone = escapes.undo(data)
            for raw, name in self._plain.items():
                if raw in undone:
                    origins = Origins(escapes, data)
                    for at in _places(raw, undone):
                        yield origins.start(at), origins.end(at + len(raw)), name

    # --- what comes in chunks --------------------------------------------------------------------------------------

    def stream(self) -> MaskedStream:
        """A masker for one stream of bytes that arrives in chunks cut anywhere."""
        return MaskedStream(self)

    def _undecided_start(self, data: Bytes) -> int:
        """Where the end of the data begins that could still become a secret; its length where there is none."""
        starts = [len(data), self._begins.find(data)]
        end = data[-LONGEST_ESCAPE * (self._plain_begins.longest + 2) :]
        before = len(data) - len(end)
        for escapes in all_escapes():
            if escapes.mark not in end:
                continue
            whole = end
            if begun := escapes.begun.search(end, max(0, len(end) - 2 * LONGEST_ESCAPE)):
                starts.append(before + begun.start())
                whole = end[: begun.start()]
            at = self._plain_begins.find(escapes.undo(whole))
            if at is not None:
                starts.append(before + Origins(escapes, whole).start(at))
        return min(start for start in starts if start is not None)

    def cut_end(self, text: str, least: int = 4) -> str:
        """The text without a secret's beginning at its very end, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        at = self._undecided_start(data) if self._owners else len(data)
        return data[:at].decode("utf-8", "replace") if len(data) - at >= least else text

    def cut_start(self, text: str, least: int = 4) -> str:
        """The text without a secret's end at its very start, for a text that was cut there."""
        data = text.encode("utf-8", "surrogatepass")
        for length in range(min(self._begins.longest - 1, len(data)), least - 1, -1):
            if any(form.endswith(data[:length]) for form in self._begins.forms):
                return data[length:].decode("utf-8", "replace")
        return text


class MaskedStream:
    """Masks one stream: the chunks that come out, joined, are what masking the whole at once would give.

    Only what could still become a secret is held back, and never more than the longest one is.
    """

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
        data = self._tail + data
        return self._settle(data, self._masker._undecided_start(data))

    def finish(self) -> bytes:
        """The rest: nothing follows any more."""
        return self._settle(self._tail, len(self._tail))

    def _settle(self, data: bytes, undecided: int) -> bytes:
        spans = self._masker._spans(data)
        settled, position = self._masker._replace(data, spans, self._covered, undecided, self.found)
        self._tail, self._covered = data[undecided:], max(0, position - undecided)
        return settled


class _Beginnings:
    """Tells where, at the end of data, one of the forms may have begun that more data would complete.

    With `whole` one that is complete counts, too.
    """

    def __init__(self, forms: Iterable[bytes], *, whole: bool = False) -> None:
        self.forms = sorted(forms)
        self.longest = max(map(len, self.forms), default=0)
        self._first_bytes = frozenset(form[0] for form in self.forms)
        self._first_four = frozenset(form[:4] for form in self.forms)
        self._next = bisect_left if whole else bisect_right

    def find(self, data: bytes) -> int | None:
        """Where the first of them begins; None where none does."""
        for at in range(max(0, len(data) - self.longest + 1), len(data)):
            if data[at] not in self._first_bytes:
                continue
            four = data[at : at + 4]
            if len(four) == 4 and four not in self._first_four:
                continue
            begun = data[at:]
            following = self._next(self.forms, begun)
            if following < len(self.forms) and self.forms[following].startswith(begun):
                return at
        return None


def _places(form: bytes, data: bytes) -> Iterator[int]:
    at = data.find(form)
    while at >= 0:
        yield at
        at = data.find(form, at + 1)


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

"""A secret that a task writes in another way than it was given is masked all the same, whole or in pieces."""

from __future__ import annotations

import base64
import html
import json
import quopri
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentos.secrets import Masker
from tests.cli.conftest import Agentos, agentos

__all__ = ["agentos"]

pytestmark = pytest.mark.attack

SECRET = "sk-Live/9+é&<q>\"'x=Z7"
MASK = "[secret:TOKEN]"
MASKER = Masker([("TOKEN", SECRET)])

secrets = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=8, max_size=40)
around = st.binary(max_size=20)


def escaped(text: str, choose: st.DataObject) -> str:
    """Each character as it is, or in one of the ways JSON, JavaScript and Python have for it."""

    def one(character: str) -> str:
        number = ord(character)
        ways = [f"\\u{{{number:x}}}", f"\\U{number:08x}"]
        if number > 0xFFFF:
            high, low = divmod(number - 0x10000, 0x400)
            ways += [f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04X}"]
        else:
            ways += [f"\\u{number:04x}", f"\\u{number:04X}", f"\\\\u{number:04x}"]
        if number < 0x80:
            ways += [f"\\x{number:02x}", f"\\{number:03o}"]
        plain = [character] if character != "\\" else []
        return choose.draw(st.sampled_from(ways + plain))

    return "".join(map(one, text))


@given(secrets, st.data())
def test_any_mixture_of_escapes_is_masked(secret: str, data: st.DataObject) -> None:
    masker = Masker([("TOKEN", secret)])
    masked = masker.text(f'<"{escaped(secret, data)}">')
    assert masked == f'<"{masker.mask_of("TOKEN")}">'


@given(secrets, st.sampled_from(["percent", "twice", "html", "named", "printable"]))
def test_every_character_by_its_number_is_masked(secret: str, way: str) -> None:
    masker = Masker([("TOKEN", secret)])
    raw = secret.encode()
    shown = {
        "percent": "".join(f"%{byte:02x}" for byte in raw),
        "twice": "".join(f"%25{byte:02X}" for byte in raw),
        "html": "".join(f"&#{ord(one)};" if at % 2 else f"&#x{ord(one):X};" for at, one in enumerate(secret)),
        "named": html.escape(secret),
        "printable": "".join(f"={byte:02X}" for byte in raw),
    }[way]
    assert masker.text(f"({shown})") == f"({masker.mask_of('TOKEN')})"


@given(secrets, around, around, st.booleans())
def test_nothing_of_a_secret_in_base64_is_left(secret: str, before: bytes, after: bytes, url_safe: bool) -> None:
    """Not even the few bits of it that stand in a character it shares with its neighbour."""
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    raw = secret.encode()
    shown = encode(before + raw + after).decode()
    masked = Masker([("TOKEN", secret)]).text(f"<{shown}>")
    left, _, right = masked.partition(Masker([("TOKEN", secret)]).mask_of("TOKEN"))
    assert len(left) - 1 <= len(before) * 8 // 6
    assert len(right) - 1 <= len(shown) - -(-(len(before) + len(raw)) * 8 // 6)
    if not after:
        assert right == ">", "nor the padding"


@given(secrets, st.data(), st.lists(st.integers(0, 400), max_size=12))
@example(SECRET, None, [1, 2, 3])
def test_chunks_cut_anywhere_are_masked_as_the_whole(secret: str, data: st.DataObject | None, cuts: list[int]) -> None:
    masker = Masker([("TOKEN", secret)])
    raw = secret.encode()
    mixed = quote(secret, safe="") if data is None else escaped(secret, data)
    parts = [mixed, base64.b64encode(b"x" + raw).decode(), quote(secret), html.escape(secret), raw.hex(), "plain\n"]
    whole = " ".join(parts).encode()
    stream, out, last = masker.stream(), b"", 0
    for cut in sorted({min(cut, len(whole)) for cut in cuts}):
        out += stream.feed(whole[last:cut])
        last = cut
    out += stream.feed(whole[last:]) + stream.finish()
    assert out == masker.bytes(whole)
    for byte in [whole[at : at + 1] for at in range(len(whole))]:
        stream.feed(byte)
    assert masker.bytes(out) == out, "what came out is masked for good"


def test_one_byte_at_a_time_gives_the_same() -> None:
    for shown in (
        "".join(f"\\u{ord(one):04x}" for one in SECRET),
        "".join(f"\\\\u{ord(one):04x}" for one in SECRET),
        quote(SECRET, safe=""),
        "".join(f"%{byte:02X}" for byte in SECRET.encode()),
        "".join(f"&#{ord(one)};" for one in SECRET),
        quopri.encodestring(SECRET.encode(), quotetabs=True).decode(),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(b"a" + SECRET.encode() + b"\n").decode(),
    ):
        text = f"before {shown} after".encode()
        stream = MASKER.stream()
        out = b"".join(stream.feed(text[at : at + 1]) for at in range(len(text))) + stream.finish()
        assert out == MASKER.bytes(text), shown
        assert out.startswith(b"before ")
        assert out.endswith(b" after")
        assert MASK.encode() in out


def test_a_long_secret_in_lines_of_base64_is_masked() -> None:
    secret = "".join(f"{number:02d}-" for number in range(60))
    masker = Masker([("TOKEN", secret)])
    for shown in (base64.encodebytes(secret.encode()), base64.encodebytes(secret.encode()).replace(b"\n", b"\r\n")):
        assert len(masker.bytes(shown).replace(MASK.encode(), b"").strip()) <= 4


def test_text_that_only_looks_escaped_is_left_alone() -> None:
    for text in (
        "100% of it",
        "a=10&b=20",
        "C:\\users\\new",
        "x = y; \\\\ %% &amp; &&",
        "é\\u00e9 %C3%A9",
        '{"a": "\\n"}',
    ):
        assert MASKER.text(text) is text
        stream = MASKER.stream()
        assert stream.feed(text.encode()) + stream.finish() == text.encode()


def test_no_form_of_it_reaches_what_a_run_keeps(agentos: Agentos, tmp_git_repo: Path) -> None:
    secret = "tok-9f8e7d6c5b4a"
    script = (
        "import base64, os, json\n"
        "s = os.environ['DEPLOY_TOKEN']\n"
        "print(''.join(f'\\\\u{ord(c):04x}' for c in s), flush=True)\n"
        "print(base64.b64encode(s.encode()).decode(), s.encode().hex(), flush=True)\n"
        "print(json.dumps(json.dumps(''.join(f'%{ord(c):02x}' for c in s))), flush=True)\n"
    )
    (tmp_git_repo / "show.py").write_text(script)
    (tmp_git_repo / "flow.yaml").write_text("name: x\ntasks: {a: {run: python3 show.py, effects: none}}\n")
    done = agentos("run", "flow.yaml", "--verbose", "--id", "r", cwd=tmp_git_repo, env={"DEPLOY_TOKEN": secret})
    assert done.code == 0, done.err
    kept = b"".join(file.read_bytes() for file in (tmp_git_repo / ".agentos").rglob("*") if file.is_file())
    kept += json.dumps([done.out, done.err]).encode()
    encoded = base64.b64encode(secret.encode())
    for form in (b"u0074", encoded[:6], encoded[-4:], secret.encode().hex()[:8].encode(), b"%74%6f"):
        assert form not in kept, form

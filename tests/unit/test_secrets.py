"""Masking: no form of a secret survives it, whatever surrounds it and however it is cut; everything else does."""

from __future__ import annotations

import base64
import json
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentos.secrets import NO_SECRETS, EnvironmentSecrets, Masker, looks_secret

TOKEN = "s3cr3t-T0ken/with+all=kinds&of 'signs'"
KEY = "AKIA0123456789abcdefGHIJ"


def masker(*values: str) -> Masker:
    return Masker((f"TOKEN_{number}", value) for number, value in enumerate(values))


def forms(secret: str, before: bytes, after: bytes) -> dict[str, bytes]:
    """Every way of writing a secret that has to be recognised, each with something around it."""
    raw = secret.encode()
    written = {
        "plain": before + raw + after,
        "url": before + quote(secret, safe="").encode() + after,
        "url, slashes": before + quote(secret).encode() + after,
        "url, plus": before + quote_plus(secret).encode() + after,
        "json": before + json.dumps(secret)[1:-1].encode() + after,
        "json, unicode": before + json.dumps(secret, ensure_ascii=False)[1:-1].encode() + after,
        "repr": before + repr(secret)[1:-1].encode() + after,
    }
    for pad in range(3):
        whole = before + b"x" * pad + raw + after
        written[f"base64 {pad}"] = base64.b64encode(whole)
        written[f"base64 url {pad}"] = base64.urlsafe_b64encode(whole)
        written[f"base64 alone {pad}"] = base64.b64encode(b"x" * pad + raw)
    return written


def shows(secret: str, data: bytes) -> bool:
    """Whether the secret can be read out of the data by undoing any of the encodings."""
    raw = secret.encode()
    plain = [raw, quote(secret, safe="").encode(), quote(secret).encode(), quote_plus(secret).encode()]
    plain += [json.dumps(secret)[1:-1].encode(), json.dumps(secret, ensure_ascii=False)[1:-1].encode()]
    if any(form in data for form in plain):
        return True
    text = data.replace(b"-", b"+").replace(b"_", b"/")
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    runs = "".join(chr(sign) if sign in alphabet else " " for sign in text).split()
    return any(
        raw in base64.b64decode(run[start : start + (len(run) - start) // 4 * 4])
        for run in runs
        for start in range(min(4, len(run)))
    )


secrets = st.text(
    st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=8, max_size=40
).filter(lambda text: len(text.strip()) >= 8)
around = st.binary(max_size=12)


@given(secret=secrets, before=around, after=around)
@example(secret=TOKEN, before=b"", after=b"")
@example(secret="[secret:", before=b"", after=b"")
@example(secret="TOKEN_0]", before=b"", after=b"")
@example(secret="aaaaaaaa", before=b"aaaa", after=b"aaaaaa")
@example(secret="********", before=b"", after=b"")
@example(secret="ab/cd+ef=12345", before=b"100%", after=b"")  # the %ab of it is no escape
@example(secret="b/cd+ef=12345", before=b"100%a", after=b"")
@example(secret='u0041"bcdef"', before=b"\\", after=b"")
def test_no_form_of_a_secret_survives(secret: str, before: bytes, after: bytes) -> None:
    mask = masker(secret)
    for form, data in forms(secret, before, after).items():
        masked = mask.bytes(data)
        assert not shows(secret, masked), form
        assert mask.bytes(masked) == masked, form


@given(
    values=st.lists(secrets, min_size=1, max_size=3),
    pieces=st.lists(st.one_of(around, st.integers(0, 40)), max_size=8),
    cuts=st.lists(st.integers(1, 30), max_size=40),
)
@example(values=["aaaaaaaa"], pieces=[b"a" * 12, b"a" * 9], cuts=[1, 2, 3, 4])
@example(values=["abcdefgh", "abcdefghijkl", "ghijklmnop"], pieces=[b"abcdefghijk", b"lmnop"], cuts=[9, 1, 1])
def test_however_a_stream_is_cut_it_is_masked_as_the_whole_would_be(
    values: list[str], pieces: list[bytes | int], cuts: list[int]
) -> None:
    mask = masker(*values)
    ways = [form for secret in values for form in forms(secret, b"", b"").values()]
    whole = b"".join(piece if isinstance(piece, bytes) else ways[piece % len(ways)] for piece in pieces)
    stream, shown, rest = mask.stream(), b"", whole
    for cut in cuts:
        shown += stream.feed(rest[:cut])
        rest = rest[cut:]
    shown += stream.feed(rest) + stream.finish()
    assert shown == mask.bytes(whole)
    assert not any(shows(secret, shown) for secret in values)


@given(text=st.text(max_size=200), secret=secrets)
def test_text_without_secrets_is_unchanged(text: str, secret: str) -> None:
    mask = masker(secret)
    assume(not mask.names_in(text.encode("utf-8", "surrogatepass")))
    assert mask.text(text) is text
    assert mask.value_and_names({"a": [text, 1, None]}) == ({"a": [text, 1, None]}, ())
    assert NO_SECRETS.text(text) is text
    assert NO_SECRETS.stream().feed(text.encode("utf-8", "surrogatepass")) == text.encode("utf-8", "surrogatepass")


@given(st.binary(max_size=300), st.integers(1, 20))
def test_a_stream_holds_back_no_more_than_could_become_a_secret(data: bytes, size: int) -> None:
    stream = masker(KEY).stream()
    given_out = 0
    for start in range(0, len(data), size):
        given_out += len(stream.feed(data[start : start + size]))
    assert len(data) - given_out <= 0 or data.endswith(stream.finish())


def test_a_stream_gives_out_at_once_what_cannot_become_a_secret() -> None:
    stream = masker(KEY).stream()
    assert stream.feed(b"hello ") == b"hello "
    assert stream.feed(b"AKIA01") == b""
    assert stream.feed(b"!") == b"AKIA01!"
    assert stream.feed(KEY.encode()) == b"[secret:TOKEN_0]"
    assert stream.found == {"TOKEN_0"}


def test_a_stream_of_nothing_but_a_secret_takes_no_memory() -> None:
    stream = masker("a" * 10).stream()
    shown = b"".join(stream.feed(b"a" * 1000) for _ in range(100)) + stream.finish()
    assert shown == b"[secret:TOKEN_0]"
    assert len(stream._tail) < 20


# --- values -------------------------------------------------------------------------------------------------------


def test_values_are_masked_wherever_they_stand() -> None:
    mask = Masker([("PIN", "12345678"), ("API_KEY", KEY)])
    value = {
        "list": ["a", f"x{KEY}y", {"deep": KEY.encode()}],
        KEY: 1,
        "number": 12345678,
        "float": 0.12345678,
        "decimal": Decimal("12345678.5"),
        "none": None,
        "true": True,
        "day": date(2024, 1, 2),
        "tuple": ("a", KEY),
    }
    masked, names = mask.value_and_names(value)
    assert names == ("API_KEY", "PIN")
    assert masked == {
        "list": ["a", "x[secret:API_KEY]y", {"deep": b"[secret:API_KEY]"}],
        "[secret:API_KEY]": 1,
        "number": "[secret:PIN]",
        "float": "0.[secret:PIN]",
        "decimal": "[secret:PIN].5",
        "none": None,
        "true": True,
        "day": date(2024, 1, 2),
        "tuple": ("a", "[secret:API_KEY]"),
    }
    assert mask.value_and_names(masked) == (masked, ())


def test_what_did_not_change_is_shared() -> None:
    value: dict[str, Any] = {"a": [1, {"b": "c"}], "d": ("e",)}
    assert masker(KEY).value_and_names(value)[0] is value


def test_keys_that_become_alike_are_all_kept() -> None:
    value = {KEY: 1, base64.b64encode(KEY.encode()).decode(): 2}
    assert sorted(masker(KEY).value_and_names(value)[0].values()) == [1, 2]


def test_a_secret_in_stored_json_is_never_missed() -> None:
    mask = masker('pa"ss\\word\n1')
    for text in ('pa"ss\\word\n1', json.dumps('pa"ss\\word\n1')):
        assert mask.may_be_in(json.dumps({"a": text}).encode())
    assert not mask.may_be_in(b'{"a":"password"}')


def test_a_key_of_several_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nBAQEFAASCBKcwggSjAgEAAo\n-----END PRIVATE KEY-----\n"
    mask = Masker([("SSH_KEY", key)])
    assert mask.text(f"  {key.splitlines()[1]}  ") == "  [secret:SSH_KEY]  "
    assert mask.text("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"
    assert mask.text(f"<{key}>") == "<[secret:SSH_KEY]>"


def test_secrets_that_overlap_become_one_mask() -> None:
    mask = Masker([("A_TOKEN", "abcdefgh"), ("B_TOKEN", "efghijkl")])
    assert mask.text("<abcdefghijkl>") == "<[secret:A_TOKEN]>"


def test_a_secret_that_looks_like_a_mask_has_another_one() -> None:
    mask = Masker([("PASSWORD", "PASSWORD"), ("OTHER", "]12345678")])
    assert mask.text("<PASSWORD>]12345678") == "<***>***"
    assert Masker([("A", "*[******")]).text("*[******") == "###"


def test_text_that_was_cut_within_a_secret_shows_no_part_of_it() -> None:
    mask = masker(KEY)
    assert mask.cut_end(f"it is {KEY[:15]}") == "it is "
    assert mask.cut_start(f"{KEY[5:]} it is") == " it is"
    assert mask.cut_end("it is AK") == "it is AK"
    assert mask.cut_start("an end") == "an end"


# --- which variables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "GITHUB_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "PGPASSWORD",
        "OPENAI_API_KEY",
        "apikey",
        "SSH_PRIVATE_KEY",
        "MY_CREDENTIALS",
        "DB_PASS",
        "MYSQL_PWD",
        "SIGNING_KEY",
        "GPG_PASSPHRASE",
        "npm_config_authtoken",
    ],
)
def test_names_that_look_like_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "PWD",
        "OLDPWD",
        "HOME",
        "KEYBOARD",
        "MONKEY",
        "COMPASS",
        "TOKEN_FILE",
        "CREDENTIALS_DIRECTORY",
        "MAX_OUTPUT_TOKENS",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
        "TOKENIZERS_PARALLELISM",
        "AGENTOS_IDEMPOTENCY_KEY",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


def test_keys_in_the_headers_for_collectors_are_secrets_and_short_values_are_not() -> None:
    key, name = "hcaik-0123456789abcdef", "OTEL_EXPORTER_OTLP_HEADERS"
    given = f"authorization=Bearer%20{key},x-tenant=production"
    masker = Masker.for_run(source=EnvironmentSecrets({name: given, "OTEL_EXPORTER_OTLP_TRACES_HEADERS": f"k={key}2"}))
    assert masker.text(f"{name}={given}") == f"{name}=[secret:{name}]"
    assert masker.text(f"> authorization: Bearer {key}") == f"> authorization: Bearer [secret:{name}]"
    assert key not in masker.text(f"{key}2")
    assert masker.text("to production") == "to production"


def test_only_values_of_eight_characters_are_guessed_and_declared_ones_of_four() -> None:
    env = {"A_TOKEN": "1234567", "B_TOKEN": "12345678", "PIN": "9876", "TINY": "abc", "OTHER": "harmless text"}
    mask = Masker.for_run(["PIN", "TINY", "UNSET"], EnvironmentSecrets(env))
    assert mask.names == ("PIN", "B_TOKEN")
    assert mask.too_short == ("TINY",)
    assert (
        mask.text("1234567 12345678 9876 abc harmless text")
        == "1234567 [secret:B_TOKEN] [secret:PIN] abc harmless text"
    )


def test_a_password_in_a_url_is_a_secret_whatever_the_variable_is_called() -> None:
    mask = Masker.for_run((), EnvironmentSecrets({"DATABASE_URL": "postgresql://me:p%40ssw0rd99@host/db?a=b"}))
    assert mask.text("p@ssw0rd99 p%40ssw0rd99 host") == "[secret:DATABASE_URL] [secret:DATABASE_URL] host"
    assert not Masker.for_run((), EnvironmentSecrets({"HOMEPAGE": "https://example.org/a:b@c"}))


def test_without_secrets_there_is_nothing_to_do() -> None:
    assert not NO_SECRETS
    assert not Masker.for_run(["UNSET"], EnvironmentSecrets({"HOME": "/home/me/somewhere"}))


def test_a_masker_can_learn_one_more_value() -> None:
    known = Masker([("A", "first-secret")])
    both = known.with_secret("B", "second-secret")
    assert both.text("first-secret second-secret") == "[secret:A] [secret:B]"
    assert known.text("second-secret") == "second-secret"
    assert both.with_secret("C", "second-secret") is both
    assert both.with_secret("D", "abc") is both
    assert known.with_secret("E", "") is known

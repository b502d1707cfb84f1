"""Parameters as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos import Client, Workflow, run
from agentos.dag.language.references import as_text
from agentos.exceptions import RunRefusedError, WorkflowDefinitionError
from agentos.workflow.define.parameters import parse_params, typed_value


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("k=text", "text"),
        ("k=", ""),
        ("k=a=b", "a=b"),
        ("k= spaced ", " spaced "),
        ("k=3", 3),
        ("k=-3", -3),
        ("k=0.5", 0.5),
        ("k=1.10", "1.10"),
        ("k=1e3", "1e3"),
        ("k=007", "007"),
        ("k=+3", "+3"),
        ("k=9007199254740993", 9007199254740993),
        ("k=true", True),
        ("k=True", "True"),
        ("k=yes", "yes"),
        ("k=null", None),
        ("k=NaN", "NaN"),
        ("k=[1, 2]", [1, 2]),
        ('k={"a": 1}', {"a": 1}),
        ("k=[1, 2", "[1, 2"),
        ('k="3"', "3"),
        ("k='3'", "'3'"),
        ("k=2026-01-31", "2026-01-31"),
        ("k:=1.10", 1.1),
        ('k:="x"', "x"),
        ("k=" + "[" * 100_000, "[" * 100_000),
        ("k=" + "9" * 5000, "9" * 5000),
        ("k=env:HOME", "env:HOME"),
        ("k=environment", "environment"),
    ],
)
def test_what_a_typed_value_means(pair: str, value: object) -> None:
    read = parse_params([pair])["k"]
    assert read == value
    assert type(read) is type(value)


@given(st.text() | st.integers().map(str) | st.floats().map(str) | st.sampled_from(["1.0", "01", "1.50", "true"]))
def test_a_scalar_reads_the_same_in_a_text(typed: str) -> None:
    value = typed_value(typed)
    if not isinstance(value, (str, list, dict)):
        assert as_text(value) == typed


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    yaml, json = tmp_path / "p.yaml", tmp_path / "p.json"
    yaml.write_text("a: 1\nb: [x, 'y']\nc: on\n")
    json.write_text('{"a": 1,\n\t"b": {"c": null}}')
    assert parse_params(["a=2"], yaml) == {"a": 2, "b": ["x", "y"], "c": "on"}
    assert parse_params([], json) == {"a": 1, "b": {"c": None}}
    assert parse_params([]) == {}


def test_everything_that_cannot_be_read_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("a: 1\na: 2\n")
    with pytest.raises(WorkflowDefinitionError) as caught:
        parse_params(["novalue", "=x", ":=1", "k:=[", "d=1", "d=2"], path)
    told = [str(finding) for finding in caught.value.findings]
    assert len(told) == 6
    for words in ("'novalue' is not NAME=VALUE", "'=x' is not", "':=1' is not", "k: not JSON", "'d' is given twice",
                  "p.yaml:2:1: the key 'a' is here twice"):  # fmt: skip
        assert any(words in one for one in told), words


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("p.yaml", b"- a\n", "a file of parameters is a map of names"),
        ("p.yaml", b"a: [", "p.yaml:1:5: not YAML"),
        ("p.yaml", b"\xff", "not UTF-8"),
        ("p.json", b"[1]", "p.json"),
        ("p.json", b"{", "p.json"),
        ("none.yaml", None, "is not there"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, data: bytes | None, told: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(WorkflowDefinitionError, match=told):
        parse_params([], tmp_path / name)


def test_a_variable_is_stored_by_name_and_given_by_value(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_FOR_TEST", "s3cret-value")
    flow = Workflow("w", params={"token": "", "other": "env:not a name"})
    given: list[Any] = []

    @flow.task(if_="params.token == 'env:TOKEN_FOR_TEST'")
    def use(token: str, other: str) -> int:
        given.append((token, other))
        return len(token)

    flow.add("say", "shell", run="test -n ${{ params.token }}", effects="none")
    result = run(flow, parse_params(["token=env:TOKEN_FOR_TEST"]), repo=tmp_git_repo)
    assert result.status == "complete", result.errors
    assert given == [("s3cret-value", "env:not a name")]
    client = Client(tmp_git_repo)
    assert client.plan(result.workflow_id).params["token"] == "env:TOKEN_FOR_TEST"
    assert "s3cret-value" not in str(client.events(result.workflow_id))


def test_a_variable_that_is_not_set_is_told_before_anything_runs(tmp_git_repo: Path) -> None:
    flow = Workflow("w", params={"token": "env:NO_SUCH_VARIABLE_HERE"})
    flow.add("use", "shell", run="echo ${{ params.token }}")
    with pytest.raises(RunRefusedError, match="NO_SUCH_VARIABLE_HERE"):
        run(flow, repo=tmp_git_repo)

"""Parameters with types and descriptions, through the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

SERVE = """\
params:
  port: {type: integer, default: 8080, help: The port to listen on.}
  version: {type: string, help: What to serve.}
  channel: {type: string, default: stable, choices: [stable, beta]}
  dry: {type: boolean, default: false}
  ratio: {type: number, default: 1}
  hosts: {type: list, default: []}
  plain: {x: 1}
tasks:
  say: {run: [echo, "${{ params }}"], effects: none}
"""


@pytest.fixture
def repo(tmp_git_repo: Path) -> Path:
    (tmp_git_repo / "serve.yaml").write_text(SERVE)
    return tmp_git_repo


def said(out: str) -> dict[str, object]:
    done = next(event for event in map(json.loads, out.splitlines()) if event["type"] == "task_complete")
    values: dict[str, object] = json.loads(done["output"]["stdout"])
    return values


def test_check_and_help_describe_them(agentos: Agentos, repo: Path) -> None:
    lines = [
        "port: integer = 8080        The port to listen on.",
        'channel: string = "stable"  One of "stable", "beta".',
        "dry: boolean = false",
        "ratio: number = 1",
        "hosts: list = []",
        'plain = {"x":1}',
        "version: string (required)  What to serve.",
    ]
    checked = agentos("check", "serve.yaml", cwd=repo)
    assert checked.out.splitlines()[2:10] == ["  parameters:", *(f"    {line}" for line in lines)]
    told = json.loads(agentos("check", "serve.yaml", "--json", cwd=repo).out)[0]["params"][1]
    assert told == {
        "name": "channel", "required": False, "default": "stable", "type": "string", "help": "",
        "choices": ["stable", "beta"],
    }  # fmt: skip
    usual = agentos("run", "--help", cwd=repo)
    for words in (("serve.yaml", "--help"), ("-h", "serve.yaml")):
        shown = agentos("run", *words, cwd=repo)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.startswith(usual.out)
        assert shown.out[len(usual.out) :].split("\n") == [
            "", "Parameters of serve.yaml:", *(f"  {line}" for line in lines), "",
        ]  # fmt: skip
    assert not (repo / ".agentos").exists(), "nothing was written"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("none.yaml", None, "there is no file none.yaml"),
        ("bad.yaml", "tasks: {a: {rnu: ls}}", "'bad' has 1 problem"),
        ("quits.py", "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("fails.py", "1/0", "ZeroDivisionError"),
    ],
)
def test_the_help_is_shown_whatever_is_wrong_with_the_file(
    agentos: Agentos, repo: Path, name: str, text: str | None, why: str
) -> None:
    if text is not None:
        (repo / name).write_text(text)
    shown = agentos("run", name, "--help", cwd=repo)
    assert (shown.code, shown.err) == (0, "")
    usual, _, section = shown.out.partition(f"\nParameters of {name}:\n")
    assert usual == agentos("run", "--help", cwd=repo).out
    told = " ".join(section.split())
    assert told.startswith("not known ")
    assert why in told
    assert told.endswith("; `agentos check` tells more.")


def test_a_python_file_has_them_too(agentos: Agentos, repo: Path) -> None:
    (repo / "flow.py").write_text(
        "from agentos import Workflow\nprint('imported')\n"
        "flow = Workflow('w', params={'n': {'type': 'integer', 'default': 2, 'help': 'How many.'}})\n"
        "@flow.task\ndef double(n, by): return n * by\n"
    )
    shown = agentos("run", "flow.py", "--help", cwd=repo)
    assert shown.out.endswith("\nParameters of flow.py:\n  n: integer = 2  How many.\n  by (required)\n")
    refused = agentos("run", "flow.py", "-p", "n=x", "-p", "by=2", cwd=repo)
    assert refused.code == 2
    assert "the parameter 'n' takes an integer, not 'x'" in refused.err


def test_what_is_typed_is_read_by_its_type(agentos: Agentos, repo: Path) -> None:
    typed = ("version=3", "port=80", "dry=true", "ratio=1e3", 'hosts=["a"]', "channel=beta")
    done = agentos("run", "serve.yaml", *(word for pair in typed for word in ("-p", pair)), "--json", cwd=repo)
    assert done.code == 0, done.err
    assert said(done.out) == {
        "version": "3", "port": 80, "dry": True, "ratio": 1000.0, "hosts": ["a"], "channel": "beta", "plain": {"x": 1},
    }  # fmt: skip
    literal = agentos("run", "serve.yaml", "-p", 'version=["a"]', "--json", cwd=repo)
    assert said(literal.out)["version"] == '["a"]'
    proved = agentos("prove", "serve.yaml", "-p", "version=1.10", "--json", cwd=repo)
    assert json.loads(proved.out)["tasks"][0]["verdict"] == "idempotent", proved.err


def test_what_does_not_fit_is_refused_with_the_type_and_what_came(agentos: Agentos, repo: Path) -> None:
    typed = ("version=1", "port=abc", "dry=yes", "ratio=007", "hosts=a,b", "channel=x")
    done = agentos("run", "serve.yaml", *(word for pair in typed for word in ("-p", pair)), cwd=repo)
    assert (done.code, done.out) == (2, "")
    for line in (
        "serve.yaml:2:3: params: the parameter 'port' takes an integer, not 'abc'",
        "serve.yaml:4:3: params: the parameter 'channel' takes one of 'stable', 'beta', not 'x'",
        "serve.yaml:5:3: params: the parameter 'dry' takes a boolean, true or false, not 'yes'",
        "serve.yaml:6:3: params: the parameter 'ratio' takes a number, not '007'",
        "serve.yaml:7:3: params: the parameter 'hosts' takes a list, not 'a,b'",
    ):
        assert line in done.err
    (repo / "p.yaml").write_text("version: 1.10\n")
    from_file = agentos("run", "serve.yaml", "--params", "p.yaml", cwd=repo)
    assert "the parameter 'version' takes a string, not 1.1: write it in quotes" in from_file.err


def test_what_is_no_parameter_at_all_is_no_fault_of_the_definition(agentos: Agentos, repo: Path) -> None:
    done = agentos("run", "serve.yaml", "-p", "version=1", "-p", "version=2", "-p", "x", cwd=repo)
    assert done.code == 2
    assert "'version' is given twice" in done.err
    assert "'x' is not NAME=VALUE" in done.err
    assert "Nothing was run; give each once, as --param NAME=VALUE." in done.err


def test_a_wrong_parameter_is_answered_with_those_there_are(agentos: Agentos, repo: Path) -> None:
    (repo / "serve.yaml").write_text(SERVE.replace('"${{ params }}"', '"${{ params.port }}"'))
    for given, why in (("prot=81", "did you mean 'port'?"), ("port=abc", "takes an integer, not 'abc'")):
        refused = agentos("run", "serve.yaml", "-p", "version=1", "-p", given, cwd=repo)
        assert refused.code == 2
        assert why in refused.err
        assert "fix the definition" not in refused.err
        assert "Its parameters: 'channel', 'dry', 'hosts', 'plain', 'port', 'ratio', 'version'" in refused.err
        assert "`agentos run FILE --help` describes them." in refused.err
    (repo / "serve.yaml").write_text("tasks: {say: {run: echo, needs: gone}}")
    both = agentos("run", "serve.yaml", "-p", "port=81", cwd=repo)
    assert "fix the definition" in both.err, "something is wrong with it, too"

"""YAML workflows that run: values that try to become code, kills, edits, resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentos import Client, RunResult, resume, run
from agentos.dag.language.yaml_document import read_document, value_of
from agentos.exceptions import RunRefusedError, WorkflowDefinitionError, WorkflowFileError
from agentos.workflow.define.workflow_source import find_workflow
from tests.workflow.support import CHECKOUT, PATIENCE_S


def write(root: Path, text: str, name: str = "flow") -> Path:
    path = root / "workflows" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def ran(root: Path, text: str, params: dict[str, Any] | None = None, **more: Any) -> RunResult:
    write(root, text)
    return run(find_workflow("flow", root), params, repo=root, **more)


def test_a_workflow_of_every_kind_of_thing(tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_git_repo / "tasks_of_yaml_run.py").write_text("def shout(word, ctx): return word.upper() + ctx.task_id\n")
    result = ran(
        tmp_git_repo,
        """
        params: {names: [one, two], skip: false}
        env: {GREETING: hello, VERSION: 3.10}
        defaults: {effects: none, env: {MORE: 1.0}}
        tasks:
          say: {run: 'echo "$GREETING $VERSION $MORE $OWN"', env: {OWN: 007}}
          words: {run: [printf, '["%s"]', "${{ params.names[0] }}"], output: json}
          each: {for_each: "${{ params.names }}", as: word, key: word, run: ["echo", "<${{ word }}>"]}
          shout: {for_each: "${{ params.names }}", python: "tasks_of_yaml_run:shout", inputs: {word: "${{ item }}"}}
          skipped: {if: params.skip, run: exit 1}
          fails: {run: exit 3, continue_on_error: true, retries: {retries: 1, backoff_s: 0.01}}
          after: {needs: fails, run: "echo ${{ tasks.fails.status }}"}
          draft:
            run: echo "${{ tasks.review.output.stdout || 'start' }}+"
          review:
            run: echo "${{ tasks.draft.output.stdout }}!"
          polish: {repeat: {tasks: [draft, review], until: tasks.review.output.stdout == 'start+!+!+!', max: 5}}
          final: {needs: polish, run: "echo ${{ tasks.polish.output.rounds }} ${{ tasks.review.output.stdout }}"}
        """,
    )
    assert result.status == "complete", result.errors
    out = result.outputs
    assert out["say"]["stdout"] == "hello 3.10 1.0 007"
    assert out["words"] == ["one"]
    assert [one["stdout"] for one in out["each"]] == ["<one>", "<two>"]
    assert out["shout"] == ["ONEshout[0]", "TWOshout[1]"]
    assert "skipped" not in out
    assert out["after"]["stdout"] == "failed_safe"
    assert out["final"]["stdout"] == "3 start+!+!+!"


# --- values never become code -------------------------------------------------------------------------------------

HOSTILE = """
params: {value: x}
defaults: {effects: none}
tasks:
  bare: {run: 'printf "%s" ${{ params.value }}'}
  quoted: {run: 'printf "%s" "<${{ params.value }}>"'}
  word: {run: [printf, "%s", "${{ params.value }}"]}
  assigned:
    run: |
      value=${{ params.value }}
      printf "%s" "$value"
  document:
    run: |
      cat <<END
      ${{ params.value }}
      END
  argument: {run: 'printf "%s|" first ${{ params.value }} last'}
  env: {run: 'printf "%s" "$VALUE"', env: {VALUE: "${{ params.value }}"}}
  chained: {run: 'printf "%s" ${{ tasks.word.output.stdout }}'}
"""

NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "\n touch pwned \n",
    "a\nb\n\nc",
    "-n -e --help",
    "--",
    "$HOME ${HOME} $((1+1))",
    "* ? [a-z] ~ ~root",
    "\\n \\\\ \\' \\",
    "a\tb  c",
    "| touch pwned",
    "& touch pwned &",
    "> pwned",
    "${{ params.value }}",
    "$${{ x }}",
    "!! !$ #comment",
    "END",
    "é ü 你好 🎉",
    "\x01\x1b[2J\x7f",
    "%s %d %n",
    " leading and trailing ",
    "",
]


def shell_text(value: str) -> str:
    """What a command's output is stored as: one newline at its end is taken away."""
    return value.removesuffix("\n")


def check_hostile(root: Path, value: str) -> None:
    result = ran(root, HOSTILE, {"value": value})
    assert result.status == "complete", result.errors
    out = {name: done["stdout"] for name, done in result.outputs.items()}
    assert out["bare"] == out["word"] == out["assigned"] == out["env"] == shell_text(value)
    assert out["quoted"] == f"<{value}>"
    assert out["document"] == value
    assert out["argument"] == f"first|{value}|last|"
    assert out["chained"] == shell_text(shell_text(value))
    assert not list(root.glob("**/pwned"))


@pytest.mark.parametrize("value", NASTY)
def test_a_hostile_value_stays_a_value(tmp_git_repo: Path, value: str) -> None:
    check_hostile(tmp_git_repo, value)


SHELLISH = st.text(
    st.sampled_from("ab$(){}`'\"\\;&|<>*?[]~#!=-+%\n\t ")
    | st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    max_size=30,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(SHELLISH)
def test_no_value_ever_becomes_code(tmp_git_repo: Path, value: str) -> None:
    check_hostile(tmp_git_repo, value)


def test_a_list_becomes_several_words_each_of_them_safe(tmp_git_repo: Path) -> None:
    text = """
params: {values: []}
tasks:
  words: {run: 'printf "<%s>" ${{ params.values }}', effects: none}
  vector: {run: [printf, "<%s>", "${{ params.values }}"], effects: none}
"""
    result = ran(tmp_git_repo, text, {"values": NASTY})
    assert result.status == "complete", result.errors
    assert result.outputs["words"]["stdout"] == "".join(f"<{value}>" for value in NASTY)
    assert result.outputs["vector"]["stdout"] == result.outputs["words"]["stdout"]


@pytest.mark.parametrize(
    "script",
    ["echo '${{ params.value }}'", "${{ params.value }} x", "eval ${{ params.value }}",
     "cat <<'E'\n${{ params.value }}\nE", "sh -c ${{ params.value }}",
     "echo $(( ${{ params.value }} ))", "echo `echo ${{ params.value }}`"],
)  # fmt: skip
def test_where_a_value_would_be_code_the_plan_is_refused(tmp_git_repo: Path, script: str) -> None:
    with pytest.raises(WorkflowDefinitionError, match=r"flow\.yaml:3:12: tasks\.a\.run: "):
        ran(tmp_git_repo, f"params: {{value: x}}\ntasks:\n  a: {{run: {json.dumps(script)}}}\n")


# --- killed, edited, resumed --------------------------------------------------------------------------------------

STEPS = """\
name: steps
params: {who: world}
defaults: {effects: none}
tasks:
  one: {run: "echo one >> log; echo ${{ params.who }}"}
  two: {run: "echo two >> log; echo ${{ tasks.one.output.stdout }}"}
  three: {run: "echo three >> log; while [ -e wait ]; do sleep 0.05; done; echo ${{ tasks.two.output.stdout }}"}
  four: {run: "echo four >> log; echo ${{ tasks.three.output.stdout }}"}
"""


def log(root: Path) -> list[str]:
    return (root / "log").read_text().split() if (root / "log").exists() else []


def killed_in_three(root: Path, text: str = STEPS) -> Path:
    """The workflow's file, after a run of it was killed for real while its third task ran."""
    path = write(root, text)
    (root / "wait").touch()
    code = (
        "import sys; from pathlib import Path; from agentos import run; "
        "from agentos.workflow.define.workflow_source import find_workflow; "
        "run(find_workflow('flow', Path('.')), {'who': 'Ada'}, 'w')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    )
    deadline = time.monotonic() + PATIENCE_S
    while "three" not in log(root) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert log(root) == ["one", "two", "three"]
    (root / "wait").unlink()
    return path


def test_a_killed_run_goes_on_with_nothing_but_its_id(tmp_git_repo: Path) -> None:
    killed_in_three(tmp_git_repo)
    assert Client(tmp_git_repo).list_runs()[0].status == "interrupted"
    result = resume("w", repo=tmp_git_repo)
    assert (result.status, result.outputs["four"]["stdout"]) == ("complete", "Ada"), result.errors
    assert log(tmp_git_repo) == ["one", "two", "three", "three", "four"]


def test_what_was_edited_meanwhile_is_compared_and_told(tmp_git_repo: Path) -> None:
    path = killed_in_three(tmp_git_repo)
    edited = STEPS.replace("echo one >>", "echo uno >>").replace("  four: {run:", "  four: {timeout_s: 9, run:")
    path.write_text(edited.replace("echo four >> log; ", "echo vier >> log; ") + "  five: {run: echo five >> log}\n")
    verdicts = {each.task_id: each.verdict for each in Client(tmp_git_repo).preview_resume("w").verdicts}
    assert verdicts == {"one": "reuse, changed", "two": "reuse", "three": "rerun", "four": "run", "five": "new"}
    with pytest.raises(RunRefusedError):
        resume("w", repo=tmp_git_repo, strict=True)
    result = resume("w", repo=tmp_git_repo)
    assert result.status == "complete", result.errors
    assert sorted(log(tmp_git_repo)) == ["five", "one", "three", "three", "two", "vier"]


@pytest.mark.parametrize(
    ("text", "error", "told"),
    [
        ("tasks: [", WorkflowDefinitionError, "flow.yaml:2:1: not YAML"),
        (STEPS.replace("  four: {run:", "  four: {need: one, run:"), WorkflowDefinitionError, "unknown setting 'need'"),
        (STEPS.replace("name: steps", "name: other"), RunRefusedError, "no longer defines a workflow named 'steps'"),
        (None, WorkflowFileError, "is not there"),
    ],
)
def test_a_file_that_cannot_be_used_any_more_touches_nothing(
    tmp_git_repo: Path, text: str | None, error: type[Exception], told: str
) -> None:
    path = killed_in_three(tmp_git_repo)
    before = len(Client(tmp_git_repo).events("w"))
    if text is None:
        path.unlink()
    else:
        path.write_text(text if text.endswith("\n") else f"{text}\n")
    with pytest.raises(error, match=told.replace("[", r"\[")):
        resume("w", repo=tmp_git_repo)
    assert len(Client(tmp_git_repo).events("w")) == before
    assert log(tmp_git_repo) == ["one", "two", "three"]
    path.write_text(STEPS)
    assert resume("w", repo=tmp_git_repo).status == "complete"


def test_the_same_id_with_the_same_file_is_the_same_run(tmp_git_repo: Path) -> None:
    path = killed_in_three(tmp_git_repo)
    flow = find_workflow(str(path), tmp_git_repo)
    assert run(flow, {"who": "Ada"}, "w", repo=tmp_git_repo).status == "complete"
    with pytest.raises(RunRefusedError):
        run(flow, {"who": "Bob"}, "w", repo=tmp_git_repo)


def test_json_is_yaml_too() -> None:
    document = read_document(json.dumps({"tasks": {"a": {"run": "ls"}}}).encode())
    assert document.root is not None
    assert value_of(document.root) == {"tasks": {"a": {"run": "ls"}}}

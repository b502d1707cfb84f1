"""Going on with a run whose file was renamed, or with other parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentos

FLOW = """\
name: serve
params:
  port: {type: integer, default: 80}
  tag: {type: string, default: "1"}
  ready: {type: boolean, default: false}
tasks:
  first: {run: "echo first >> ran", effects: none}
  listen: {run: "echo ${{ params.port }} >> ran", effects: none, needs: first}
  greet: {run: "echo ${{ params.tag }} >> ran", if: params.ready, effects: none, needs: listen}
  last: {run: "test ${{ params.ready }} = true; echo last ${{ params.port }} >> ran", effects: none, needs: listen}
"""


@pytest.fixture
def failed(agentos: Agentos, tmp_git_repo: Path, home: Path) -> Path:
    """A repository with one run, `mine`, that failed at `last`."""
    (tmp_git_repo / "serve.yaml").write_text(FLOW)
    assert agentos("run", "serve.yaml", "--id", "mine", cwd=tmp_git_repo).code == 1
    assert ran(tmp_git_repo) == ["first", "80"]
    return tmp_git_repo


def ran(repo: Path) -> list[str]:
    return (repo / "ran").read_text().splitlines()


def verdicts(out: str) -> dict[str, str]:
    return {row["id"]: row["verdict"] for row in json.loads(out)["tasks"]}


# --- other parameters ---------------------------------------------------------------------------------------------


def test_other_parameters_are_for_what_is_left(agentos: Agentos, failed: Path) -> None:
    told = agentos("resume", "mine", "-p", "port=81", "-p", "ready=true", "--dry-run", cwd=failed)
    assert "finished, but its parameter 'port' changed since; --rerun changed runs it" in told.out
    assert "failed; its parameter 'port' changed since" in told.out
    done = agentos("resume", "mine", "-p", "port=81", "-p", "ready=true", cwd=failed)
    assert done.code == 0, done.err
    assert ran(failed) == ["first", "80", "last 81"]
    assert (
        "the parameter 'port' it refers to is another one in plan revision 2"
        in agentos("why", "mine", "listen", cwd=failed).out
    )
    # They are the run's own from now on.
    assert agentos("resume", "mine", "--rerun", "listen", cwd=failed).code == 0
    assert ran(failed) == ["first", "80", "last 81", "81", "1"], "and what was skipped behind it is decided anew"
    shown = json.loads(agentos("resume", "mine", "--dry-run", "--json", cwd=failed).out)
    assert set(shown["counts"]) == {"reuse"}


def test_rerun_changed_runs_what_refers_to_them(agentos: Agentos, failed: Path) -> None:
    words = ("resume", "mine", "-p", "ready=true", "-p", "port=81", "-p", "tag=2", "--rerun", "changed")
    assert verdicts(agentos(*words, "--dry-run", "--json", cwd=failed).out) == {
        "first": "reuse", "listen": "rerun", "greet": "run", "last": "rerun",
    }  # fmt: skip
    done = agentos(*words, cwd=failed)
    assert done.code == 0, done.err
    assert sorted(ran(failed)) == ["2", "80", "81", "first", "last 81"]


def test_what_no_resume_can_do_with_them(agentos: Agentos, failed: Path) -> None:
    for words, why in (
        (("-p", "port=abc"), "the parameter 'port' takes an integer, not 'abc'"),
        (("-p", "prot=81"), "no task takes the parameter 'prot' (did you mean 'port'?)"),
        (("-p", "port=81", "--strict"), "listen changed; last changed"),
        (("-p", "port=81", "--as-stored"), "no --param and no --workflow"),
    ):
        refused = agentos("resume", "mine", *words, cwd=failed)
        assert refused.code == 2
        assert why in refused.err
    assert agentos("resume", "--all", "-p", "port=81", cwd=failed).code == 2
    assert ran(failed) == ["first", "80"]
    assert agentos("resume", "mine", "-p", "ready=true", cwd=failed).code == 0
    for looks in ([], ["--dry-run"]):
        complete = agentos("resume", "mine", "-p", "port=81", *looks, cwd=failed)
        assert complete.code == 2
        assert "run mine is complete: other parameters change nothing of it" in complete.err
        assert "--rerun changed" in complete.err
    assert agentos("resume", "mine", "-p", "port=81", "--rerun", "changed", "--dry-run", cwd=failed).code == 0


def test_the_value_of_a_secret_is_not_taken(agentos: Agentos, failed: Path) -> None:
    env = {"DEPLOY_TOKEN": "s3cret-value-of-it"}
    refused = agentos("resume", "mine", "-p", "tag=s3cret-value-of-it", cwd=failed, env=env)
    assert refused.code == 2
    assert "holds the value of DEPLOY_TOKEN" in refused.err


def test_a_fork_takes_them_and_its_parent_keeps_its_own(agentos: Agentos, failed: Path) -> None:
    words = ("fork", "mine", "--id", "child", "-p", "port=81", "-p", "ready=true")
    done = agentos(*words, "--rerun", "changed", cwd=failed)
    assert done.code == 0, done.err
    assert sorted(ran(failed)) == ["1", "80", "81", "first", "last 81"]
    again = agentos("resume", "mine", "--dry-run", "--json", cwd=failed)
    assert verdicts(again.out) == {"first": "reuse", "listen": "reuse", "greet": "reuse", "last": "rerun"}


# --- a renamed file -----------------------------------------------------------------------------------------------


def test_a_renamed_file_is_named_once(agentos: Agentos, failed: Path) -> None:
    (failed / "serve.yaml").rename(failed / "moved.yaml")
    lost = agentos("resume", "mine", cwd=failed)
    assert lost.code == 2
    assert "serve.yaml: the workflow's file is not there" in lost.err
    assert "agentos resume mine --workflow FILE" in lost.err
    looked = agentos("resume", "mine", "--workflow", "moved.yaml", "--dry-run", "--json", cwd=failed)
    assert verdicts(looked.out) == {"first": "reuse", "listen": "reuse", "greet": "reuse", "last": "rerun"}
    assert agentos("resume", "mine", cwd=failed).code == 2, "a dry run remembers nothing"
    assert agentos("resume", "mine", "--workflow", "moved.yaml", cwd=failed).code == 1
    # The run knows its new file: the next resume finds it.
    done = agentos("resume", "mine", "-p", "ready=true", cwd=failed)
    assert done.code == 0, done.err
    assert ran(failed) == ["first", "80", "last 80"]


def test_the_file_named_is_compared_as_any(agentos: Agentos, failed: Path) -> None:
    (failed / "serve.yaml").unlink()
    (failed / "other.yaml").write_text(FLOW.replace("name: serve", "name: other").replace("echo first", "echo 1st"))
    told = agentos("resume", "mine", "--workflow", "other.yaml", "--dry-run", cwd=failed)
    assert "finished, but its definition changed since" in told.out
    assert agentos("resume", "mine", "--workflow", "other.yaml", "--strict", cwd=failed).code == 2
    assert agentos("resume", "mine", "--workflow", "none.yaml", cwd=failed).code == 2
    assert agentos("resume", "mine", "--workflow", "other.yaml", "-p", "ready=true", cwd=failed).code == 0
    assert agentos("resume", "mine", "--rerun", "first", cwd=failed).code == 0
    assert "1st" in ran(failed)

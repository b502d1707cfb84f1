"""`agentos init`"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.cli.conftest import Agentos
from tests.conftest import git


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".git/" not in f"{path}/"}


def test_it_writes_a_workflow_with_its_schema_and_nothing_else(agentos: Agentos, tmp_git_repo: Path) -> None:
    before = files(tmp_git_repo)
    done = agentos("init", cwd=tmp_git_repo)
    assert (done.code, done.out) == (0, "workflows/hello.yaml\nworkflows/.workflow-1.schema.json\n")
    assert "agentos run hello" in done.err
    assert files(tmp_git_repo) - before == {"workflows/hello.yaml", "workflows/.workflow-1.schema.json"}
    assert agentos("init", "second", cwd=tmp_git_repo).out == "workflows/second.yaml\n"
    assert agentos("check", "hello", cwd=tmp_git_repo).code == 0


def test_the_schema_that_the_first_line_names_is_the_one_it_is_checked_by(agentos: Agentos, tmp_git_repo: Path) -> None:
    listed = json.loads(agentos("init", "--list", "--json", cwd=tmp_git_repo).out)
    assert {"fix-tests", "review", "release", "nightly", "migrate", "hello"} == set(listed)
    for name in listed:
        assert agentos("init", "--from", name, cwd=tmp_git_repo).code == 0
        workflow = tmp_git_repo / "workflows" / f"{name}.yaml"
        mark, schema = workflow.read_text().splitlines()[0].split("$schema=")
        assert mark == "# yaml-language-server: "
        validator = Draft202012Validator(json.loads((workflow.parent / schema).read_text()))
        validator.validate(yaml.safe_load(workflow.read_text()))
        assert not validator.is_valid({**yaml.safe_load(workflow.read_text()), "taks": {}})


def test_an_unknown_template_names_those_there_are(agentos: Agentos, tmp_git_repo: Path) -> None:
    done = agentos("init", "--from", "nothing", cwd=tmp_git_repo)
    assert done.code == 2
    assert "fix-tests" in done.err
    assert agentos("init", "--from", "review", "--python", cwd=tmp_git_repo).code == 2
    assert not (tmp_git_repo / "workflows").exists()


@pytest.mark.parametrize("options", [(), ("--python",)])
def test_what_it_writes_can_be_checked_and_run(agentos: Agentos, tmp_git_repo: Path, options: tuple[str, ...]) -> None:
    from agentos import run
    from agentos.workflow.define.workflow_source import find_workflow

    name = "first_of_yaml" if not options else "first_of_python"
    assert agentos("init", name, *options, cwd=tmp_git_repo).code == 0
    checked = agentos("check", name, cwd=tmp_git_repo)
    assert f"{name}, 3 tasks in 2 layers" in checked.out, checked.err
    result = run(find_workflow(name, tmp_git_repo), {"name": "Ada"}, repo=tmp_git_repo)
    assert result.status == "complete", result.errors
    report = result.outputs["report"]
    text = report if options else report["stdout"]
    assert "Hello, Ada!" in text
    assert "3 characters" in text


def test_it_never_writes_over_a_file(agentos: Agentos, tmp_git_repo: Path) -> None:
    agentos("init", cwd=tmp_git_repo)
    (tmp_git_repo / "workflows" / "hello.yaml").write_text("mine")
    for options in ((), ("--python",)):  # a second hello would make the name ambiguous
        done = agentos("init", *options, cwd=tmp_git_repo)
        assert (done.code, done.out) == (2, "")
        assert "workflows/hello.yaml is there already" in done.err
    assert (tmp_git_repo / "workflows" / "hello.yaml").read_text() == "mine"
    assert not (tmp_git_repo / "workflows" / "hello.py").exists()


def test_gitignore_gets_its_line_once(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / ".gitignore").write_bytes(b"*.pyc\n\xff\xfe")
    for name in ("a", "b"):
        assert agentos("init", name, "--gitignore", cwd=tmp_git_repo).code == 0
    assert (tmp_git_repo / ".gitignore").read_bytes() == b"*.pyc\n\xff\xfe\n.agentos/\n"


def test_it_writes_at_the_root_wherever_it_is_typed(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "deep" / "er").mkdir(parents=True)
    assert agentos("init", cwd=tmp_git_repo / "deep" / "er").code == 0
    assert (tmp_git_repo / "workflows" / "hello.yaml").is_file()
    assert git("status", "--short", cwd=tmp_git_repo) == "?? workflows/"


def test_outside_a_repository_it_says_where_state_would_live(agentos: Agentos, tmp_path: Path) -> None:
    done = agentos("init", cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith("Cannot determine checkpoint database location")
    assert not (tmp_path / "workflows").exists()


@pytest.mark.parametrize("name", ["../up", "a/b", "", "a b", "-x", "1st", "a\nb"])
def test_a_name_is_one_that_a_file_can_have(agentos: Agentos, tmp_git_repo: Path, name: str) -> None:
    done = agentos("init", "--", name, cwd=tmp_git_repo)
    assert done.code == 2
    assert "cannot be the name of a workflow" in done.err
    assert not (tmp_git_repo / "workflows").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_repository(agentos: Agentos, tmp_git_repo: Path) -> None:
    tmp_git_repo.chmod(0o500)
    try:
        done = agentos("init", cwd=tmp_git_repo)
    finally:
        tmp_git_repo.chmod(0o700)
    assert done.code == 1
    assert "Traceback" not in done.err


def test_workflows_may_be_a_file(agentos: Agentos, tmp_git_repo: Path) -> None:
    (tmp_git_repo / "workflows").write_text("not a folder")
    done = agentos("init", cwd=tmp_git_repo)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert len(done.err.splitlines()) == 1

"""Filing with `gh`: a real executable of that name, which records its arguments and keeps issues and labels."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.issue.stage import Stage
from tests.marks import quick_first

GH = """#!{python}
import json, os, pathlib, sys
here = pathlib.Path({here!r})
arguments = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
def value(name):
    return arguments[arguments.index(name) + 1]
def kept(name):
    file = here / name
    return json.loads(file.read_text()) if file.exists() else []
def keep(name, rows):
    (here / name).write_text(json.dumps(rows))
match arguments[:2]:
    case ["auth", "status"]:
        sys.exit(1 if (here / "signed-out").exists() else 0)
    case ["label", "list"]:
        print(json.dumps([{{"name": name}} for name in kept("labels")]))
    case ["label", "create"]:
        keep("labels", [*kept("labels"), arguments[2]])
    case ["issue", "list"]:
        found = [] if "--search" not in arguments and (here / "old").exists() else kept("issues")
        print(json.dumps([{{"url": row["url"], "body": row["body"]}} for row in found]))
    case ["issue", "create"]:
        if (here / "down").exists():
            (here / "down").unlink()
            sys.exit("could not resolve host")
        wanted = [arguments[n + 1] for n, word in enumerate(arguments) if word == "--label"]
        missing = set(wanted) - set(kept("labels"))
        if missing:
            sys.exit(f"could not add label: {{missing}} not found")
        url = f"https://github.com/o/r/issues/{{len(kept('issues')) + 77}}"
        assert value("--body-file") == "-"
        row = {{"url": url, "title": value("--title"), "labels": wanted, "body": sys.stdin.read()}}
        keep("issues", [*kept("issues"), row])
        print("Creating issue in o/r\\n", file=sys.stderr)
        print(url)
    case _:
        sys.exit(f"unknown command {{arguments}}")
"""


class Gh:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        program = folder / "bin" / "gh"
        program.write_text(GH.format(python=sys.executable, here=str(folder)))
        program.chmod(0o755)
        (folder / "labels").write_text('["ui"]')

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def issues(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = json.loads((self.folder / "issues").read_text())
        return rows


@pytest.fixture
def gh(stage: Stage, tmp_path: Path) -> Gh:
    gh = Gh(tmp_path / "gh")
    stage.env["PATH"] = f"{gh.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return gh


def file_it(stage: Stage) -> tuple[int, str, str]:
    given = (*stage.roles[:4], "--gates", "none", "--file-with", "gh")
    return tuple(stage.agentos("issue", "--brief", "dark-mode.md", *given))  # type: ignore[return-value]


def test_labels_that_are_missing_are_created_and_the_issue_is_filed(stage: Stage, gh: Gh) -> None:
    (gh.folder / "down").touch()
    code, out, err = file_it(stage)
    assert code == 0, err
    assert out.splitlines()[-1] == "https://github.com/o/r/issues/77"
    [issue] = gh.issues
    assert (issue["title"], issue["labels"]) == ("Dark mode", ["ui", "night"])
    assert "agentos-issue:" in str(issue["body"])
    assert [call[2:] for call in gh.calls if call[:2] == ["label", "create"]] == [["night"]]
    looked = [call for call in gh.calls if call[:2] == ["issue", "list"]]
    assert looked[0][2:] == ["--state", "all", "--limit", "300", "--json", "url,body"]
    assert len([call for call in gh.calls if call[:2] == ["issue", "create"]]) == 2, "the first try could not connect"
    assert stage.artefacts("done/77-dark-mode")[-1] == "004-filed.json"


@pytest.mark.parametrize("age", quick_first(["new", "old"]))
def test_an_issue_with_the_marker_is_found_and_not_created_again(stage: Stage, gh: Gh, age: str) -> None:
    """Killed right after it was created: the record is missing, the issue is not."""
    given = (*stage.roles[:4], "--gates", "none", "--file-with", "gh")
    cut_off = {"AGENTOS_CRASH_AT": "attempt.after:12"}  # the twelfth attempt files
    assert stage.agentos("issue", "--brief", "dark-mode.md", *given, env=cut_off).code == -9
    assert len(gh.issues) == 1
    if age == "old":
        (gh.folder / "old").touch()  # only the search finds it
    code, _, err = file_it(stage)
    assert code == 0, err
    assert len(gh.issues) == 1
    assert stage.artefacts("done/77-dark-mode")[-1] == "004-filed.json"


def test_signed_out_is_told_before_anything_is_spent(stage: Stage, gh: Gh) -> None:
    (gh.folder / "signed-out").touch()
    code, _, err = file_it(stage)
    assert (code, "gh is not signed in (gh auth login)" in err) == (1, True)
    assert stage.calls("drafter") == []

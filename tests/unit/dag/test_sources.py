"""`sources` as written: which paths a pattern means, and what is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.dag.define.task import SourceVariable
from agentos.dag.define.workflow import Workflow
from agentos.dag.language.path_patterns import matching, overlaps, pattern_problem
from agentos.dag.plan.plan import compile_plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId

NAMES = sorted(
    [
        *(".github/ci.yml", "a/b/c/x.py", "docs/x.md", "pyproject.toml", "src-x/a.py"),
        *("src.txt", "src/a.py", "src/[b].py", "src/pkg/b.py", "src0/a.py"),
    ]
)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("src/**", ["src/[b].py", "src/a.py", "src/pkg/b.py"]),
        ("src", ["src/[b].py", "src/a.py", "src/pkg/b.py"]),
        ("./src/", ["src/[b].py", "src/a.py", "src/pkg/b.py"]),
        ("src/*.py", ["src/[b].py", "src/a.py"]),
        ("src/?.py", ["src/a.py"]),
        ("src/[ab].py", ["src/a.py"]),
        ("src/[!b].py", ["src/a.py"]),
        ("src/[[]b].py", ["src/[b].py"]),
        ("src/**/b.py", ["src/pkg/b.py"]),
        ("**/a.py", ["src-x/a.py", "src/a.py", "src0/a.py"]),
        ("**/*.py", ["a/b/c/x.py", "src-x/a.py", "src/[b].py", "src/a.py", "src/pkg/b.py", "src0/a.py"]),
        ("a/**/x.py", ["a/b/c/x.py"]),
        ("*.toml", ["pyproject.toml"]),
        ("*", ["pyproject.toml", "src.txt"]),
        ("src*/a.py", ["src-x/a.py", "src/a.py", "src0/a.py"]),
        (".github", [".github/ci.yml"]),
        ("**", NAMES),
        ("nothing/**", []),
        ("src/a", []),
    ],
)
def test_a_pattern_means_these_paths(pattern: str, found: list[str]) -> None:
    assert pattern_problem(pattern) == ""
    assert sorted(matching(pattern, NAMES)) == found


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("", "a path is empty"),
        ("/etc/passwd", "is absolute"),
        ("../other/**", "leads out of the root"),
        ("src/../../x", "leads out of the root"),
        ("src//a.py", "has an empty part"),
        (".", "has an empty part"),
        (".git/HEAD", "lies in .git"),
        ("src/[z-a].py", "cannot be read"),
        ({"env": ""}, "cannot be the name of a variable"),
        ({"env": "A=B"}, "cannot be the name of a variable"),
        ({"env": "MODE"}, "the task itself says what MODE is"),
        ({"file": "x"}, "unknown key 'file'"),
        (7, "a list of these, not 7"),
    ],
)
def test_what_makes_no_sense_is_refused(written: Any, why: str) -> None:
    flow = Workflow("w")
    sources: Any = written if written == 7 else [written]
    flow.add("a", "shell", run="true", env={"MODE": "1"}, sources=sources)
    with pytest.raises(WorkflowDefinitionError, match=why.replace(".", r"\.")):
        compile_plan(flow)


@pytest.mark.parametrize("settings", [{"repeat": {"tasks": ["b"], "until": "true", "max": 2}}, {"approval": "?"}])
def test_what_runs_nothing_has_no_sources(settings: dict[str, Any]) -> None:
    flow = Workflow("w")
    flow.add("b", "shell", run="true")
    if "approval" in settings:
        flow.add("a", "approval", question="?", sources="src/**")
    else:
        flow.add("a", needs="b", sources="src/**", **settings)
    with pytest.raises(WorkflowDefinitionError, match="runs nothing that depends on files"):
        compile_plan(flow)


@pytest.mark.parametrize(
    ("source", "product", "own"),
    [
        ("src/**", "src/gen.py", True),
        ("src/**", "./src/gen.py", True),
        ("dist/**", "dist", True),
        ("**/*.py", "gen.py", True),
        ("src/a.py", "src/a.py", True),
        ("src/**", "out/gen.py", False),
        ("srcs/**", "src", False),
        ("src/*.py", "src/deep/gen.py", False),
    ],
)
def test_a_task_that_produces_its_own_sources_is_refused(source: str, product: str, own: bool) -> None:
    assert overlaps(source, product) is own
    flow = Workflow("w")
    flow.add("gen", "shell", run="true", sources=[source], produces=[product])
    if own:
        with pytest.raises(WorkflowDefinitionError, match="one of its own sources"):
            compile_plan(flow)
    else:
        compile_plan(flow)


def test_a_reference_in_sources_implies_a_need_and_is_looked_at_later() -> None:
    flow = Workflow("w", params={"folder": "src"})
    flow.add("list", "shell", run="true")
    flow.add("test", "shell", run="true", sources=["${{ tasks.list.output.values.files }}", "${{ params.folder }}/**"])
    assert compile_plan(flow).tasks[TaskId("test")].definition.needs == ("list",)


def test_python_and_files_say_the_same() -> None:
    flow = Workflow("w")

    @flow.task(sources=["src/**", {"env": "MODE"}])
    def one() -> None: ...

    flow.add("two", one, sources=("src/**", SourceVariable(env="MODE")))
    plan = compile_plan(flow)
    assert plan.tasks[TaskId("one")].definition.sources == ("src/**", SourceVariable(env="MODE"))
    assert plan.tasks[TaskId("two")].definition.sources == plan.tasks[TaskId("one")].definition.sources

"""Fingerprints of tasks, and the digest of a function's code."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.mapping import task_from_mapping
from agentos.dag.define.model_calls import AgentWork, Budget, LlmWork, OnLimit
from agentos.dag.define.task import (
    Approve,
    CandidateDef,
    Concurrency,
    ForEach,
    JudgeDef,
    Repeat,
    Retry,
    SourceVariable,
    TaskDef,
)
from agentos.dag.define.workflow import Workflow
from agentos.dag.plan import fingerprint
from agentos.dag.plan.fingerprint import changed_fingerprint, code_digest, plan_fingerprint, task_fingerprint
from agentos.dag.plan.plan import compile_plan
from agentos.ids import TaskId
from tests.unit.dag.support import task

_numbers = itertools.count()
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A module from its source."""

    def load_source(source: str) -> ModuleType:
        name = f"loaded_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load_source


# --- tasks --------------------------------------------------------------------------------------------------------


def test_a_fingerprint_names_its_algorithm() -> None:
    version, _, digest = task_fingerprint(task("a")).partition(":")
    assert (version, len(digest)) == ("1", 32)


def test_a_fingerprint_never_changes_by_itself() -> None:
    stored = TaskDef(id=TaskId("a"), kind="shell", run="make ${{ params.x }}", effects=("files",), needs=(TaskId("b"),))
    assert task_fingerprint(stored) == "1:dea6a0cce4bf6be96c8a16bfa4d6e1b5"


@pytest.mark.parametrize(
    ("mapping", "fingerprint"),
    [
        (
            {"run": ["make", "all"], "retries": 3, "timeout_s": 5, "env": {"CI": 1}, "output": "json"},
            "1:36e146975e3816911acf6178fd6ecdc5",
        ),
        (
            {
                "python": "mypkg.notes:write",
                "inputs": {"n": 1},
                "if": "tasks.a.status == 'failed'",
                "effects": "external",
                "idempotent": "keyed",
            },
            "1:3fbc828f8f45335ae436bbc7bff634b9",
        ),
        (
            {"agent": "claude", "prompt": "Review", "permissions": "read", "max_turns": 3, "budget": 2},
            "1:e0d527c517e2538e42633d8f0cc387e4",
        ),
        (
            {"llm": "gpt", "prompt": "Sum up", "temperature": 0, "schema": {"type": "object"}},
            "1:a4d44366ec075ef12afe97d1095451ce",
        ),
        (
            {"approval": {"question": "Ship?", "choices": ["yes", "no"]}, "timeout_s": 60},
            "1:d7a822bfb51293a5e62528388d3dfb0f",
        ),
        (
            {
                "run": "wc ${{ file }}",
                "for_each": ["a", "b"],
                "as": "file",
                "key": "file",
                "isolation": "worktree",
                "concurrency": "io",
            },
            "1:8282e4d4e03b7736e5fdf18a0d6e1616",
        ),
        ({"repeat": {"tasks": ["draft"], "until": "true", "max": 2}}, "1:7a28790549e671799b0a7b4888d835da"),
    ],
)
def test_fingerprints_of_every_kind_are_those_recorded(mapping: dict[str, Any], fingerprint: str) -> None:
    """Stored runs are compared by them: another one would repeat what is done."""
    assert task_fingerprint(task_from_mapping("a", mapping)) == fingerprint


# Two values of each, and neither the default: a field that is looked at only for being there would be found out.
COSMETIC: dict[str, tuple[Any, Any]] = {
    "timeout_s": (5.0, 6.0),
    "retry": (Retry(retries=3), Retry(retries=4)),
    "budget": (Budget(tokens=1), Budget(tokens=2)),
    "on_limit": (OnLimit(act="fail"), OnLimit(act="switch", model="m")),
    "description": ("better words", "the best"),
    "concurrency": (Concurrency(group="g"), Concurrency(group="h")),
    "runner": ("dask", "local"),  # of two values one is the default
    "resources": ({"GPU": 1.0}, {"GPU": 2.0}),
    "sources": (("src/**",), ("src/**", SourceVariable(env="MODE"))),
}
COUNTS: dict[str, tuple[Any, Any]] = {
    "id": ("b", "c"),
    "kind": ("shell", "agent"),
    "needs": (("b",), ("c",)),
    "call": ("m:g", "m:h"),
    "code": ("abc", "abd"),
    "run": ("make", "make all"),
    "agent": (AgentWork(agent="claude", prompt="a"), AgentWork(agent="claude", prompt="b")),
    "llm": (LlmWork(model="m", prompt="a"), LlmWork(model="m", prompt="b")),
    "inputs": ({"x": 1}, {"x": 2}),
    "env": ({"A": "1"}, {"A": "2"}),
    "cwd": ("sub", "other"),
    "condition": ("true", "false"),
    "continue_on_error": (True, False),  # of two values one is the default
    "idempotent": ("keyed", "yes"),
    "effects": (("external",), ("files",)),
    "isolation": ("process", "worktree"),
    "sandbox": ("worktree", ""),
    "for_each": (ForEach(items=[1]), ForEach(items=[2])),
    "repeat": (Repeat(tasks=("b",), until="x", max=3), Repeat(tasks=("b",), until="y", max=3)),
    "approve": (Approve(question="?"), Approve(question="??")),
    "item": (3, None),
    "produces": (("out",), ("in",)),
    "output": ("json", ""),
    "candidates": ((CandidateDef(), CandidateDef()), (CandidateDef(agent="codex"),) * 2),
    "judge": (JudgeDef(by="human"), JudgeDef(by="run", run="sort")),
}


def fingerprint_with(field: str, value: Any) -> str:
    return task_fingerprint(msgspec.structs.replace(task("a"), **{field: value}))


def test_each_field_of_a_task_was_thought_of() -> None:
    assert {*COSMETIC, *COUNTS} == set(TaskDef.__struct_fields__)
    assert not COSMETIC.keys() & COUNTS.keys()


@pytest.mark.parametrize("field", COSMETIC)
def test_what_is_cosmetic_does_not_count(field: str) -> None:
    assert {fingerprint_with(field, value) for value in COSMETIC[field]} == {task_fingerprint(task("a"))}


@pytest.mark.parametrize("field", COUNTS)
def test_everything_else_counts(field: str) -> None:
    one, other = COUNTS[field]
    assert fingerprint_with(field, one) != fingerprint_with(field, other)
    assert fingerprint_with(field, one) != task_fingerprint(task("a"))


def test_the_code_of_a_task_counts_wherever_it_was_imported_from(load: Load) -> None:
    """From a function's text to the fingerprint of its task, and of the plan."""

    def fingerprints(body: str) -> tuple[str, str]:
        flow = Workflow("w")
        flow.add("work", load(f"def helper(): return {body}\ndef work(): return helper()").work)
        plan = compile_plan(flow)
        return plan.tasks[TaskId("work")].fingerprint, plan.fingerprint

    one, same, other = fingerprints("1"), fingerprints("1"), fingerprints("2")
    assert one == same
    assert one[0] != other[0]
    assert one[1] != other[1]


def test_where_code_was_imported_from_counts_only_where_it_cannot_be_seen() -> None:
    def called(call: str, digest: str = "") -> str:
        return task_fingerprint(TaskDef(id=TaskId("a"), kind="python", call=call, code=digest))

    assert called("__main__:f", "abc") == called("flow:f", "abc")
    assert called("one:f") != called("two:f")


def test_the_order_of_keys_does_not_count() -> None:
    one = task("a", inputs={"x": {"p": 1, "q": 2}, "y": 1})
    two = task("a", inputs={"y": 1, "x": {"q": 2, "p": 1}})
    assert task_fingerprint(one) == task_fingerprint(two)


pairs = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=8).map(lambda found: list(found.items()))


@given(pairs, pairs)
def test_a_plans_fingerprint_can_be_kept_up_to_date(some: list[tuple[str, str]], more: list[tuple[str, str]]) -> None:
    start = plan_fingerprint("about", some)
    grown = changed_fingerprint(start, added=more)
    assert grown == plan_fingerprint("about", [*more, *some])
    assert changed_fingerprint(grown, removed=more) == start


# --- code: what counts --------------------------------------------------------------------------------------------

BASE = """
    LIMIT = 3
    def helper(x):
        return x + LIMIT
    class Tool:
        def use(self):
            return helper(1)
    def work(a, b=1):
        text = f"{a!r:>{b}} and {'x'}"
        if a:
            return helper(b)
        return Tool().use(), text
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return helper(b)", "return helper(b)  # why"),
        ("        if a:\n            return helper(b)", "\n        if a:\n\n                return helper(b)"),
        ("return Tool().use(), text", "return (\n            Tool()\n            .use(), text\n        )"),
        ("LIMIT = 3", "LIMIT =   3  # three\n    OTHER = 4"),
        ("def work", "def unrelated(): ...\n    def work"),
    ],
)
def test_the_look_of_code_does_not_count(load: Load, old: str, new: str) -> None:
    assert old in BASE
    changed = code_digest(load(BASE.replace(old, new)).work)
    if "(\n" in new:  # parentheses are tokens
        assert changed != ""
    else:
        assert changed == code_digest(load(BASE).work)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return helper(b)", "return helper(a)"),
        ("b=1", "b=2"),
        ("{'x'}", "{'y'}"),
        (" and ", " or "),
        ("x + LIMIT", "x - LIMIT"),
        ("LIMIT = 3", "LIMIT = 4"),
        ("return helper(1)", "return helper(2)"),
        (
            "        if a:\n            return helper(b)",
            "        if a:\n            helper(b)\n        if b:\n            return helper(b)",
        ),
    ],
)
def test_what_code_does_counts_through_all_it_names_in_its_module(load: Load, old: str, new: str) -> None:
    assert old in BASE
    assert code_digest(load(BASE.replace(old, new)).work) != code_digest(load(BASE).work)


def test_the_decorator_that_makes_a_task_does_not_count_but_others_do(load: Load) -> None:
    source = """
        from agentos.dag.define.workflow import Workflow
        flow = Workflow("w")
        def twice(f):
            return f
        @flow.task(retries=1)
        @twice
        def work(): return 1
    """
    base = code_digest(load(source).work)
    assert code_digest(load(source.replace("retries=1", "retries=2, timeout_s=3")).work) == base
    assert code_digest(load(source.replace("@flow.task(retries=1)", "@flow.task")).work) == base
    assert code_digest(load(source.replace("        @twice\n", "")).work) != base
    assert code_digest(load(source.replace("return f", "return f or None")).work) != base


def test_a_parameter_named_like_another_task_is_not_its_code(load: Load) -> None:
    source = "def fetch(): return 1\ndef summary(fetch): return fetch.keys\ndef keys(): ..."
    changed = load(source.replace("return 1", "return 2").replace("...", "pass"))
    assert code_digest(changed.summary) == code_digest(load(source).summary)
    assert code_digest(changed.fetch) != code_digest(load(source).fetch)


def test_names_inside_nested_functions_count(load: Load) -> None:
    source = """
        LIMIT = 3
        def work():
            def inner():
                return LIMIT
            return inner
    """
    assert code_digest(load(source.replace("3", "4")).work) != code_digest(load(source).work)


def test_code_that_calls_in_circles_is_seen_once(load: Load) -> None:
    source = "def a(): return b()\ndef b(): return a()\nX = a\ndef c(): return X"
    module = load(source)
    assert code_digest(module.a) != code_digest(module.b)
    assert code_digest(load(source.replace("return a()", "return a")).c) != code_digest(module.c)


def test_imported_names_and_workflows_are_left_out(load: Load) -> None:
    source = """
        import json
        from pathlib import Path
        from json import dumps as d
        from agentos.dag.define.workflow import Workflow
        flow = Workflow("one")
        def work(): return json, Path, d, flow, undefined
    """
    assert code_digest(load(source).work) == code_digest(load(source.replace('"one"', '"two"')).work)


def test_a_top_level_name_that_is_never_plainly_assigned_is_left_out(load: Load) -> None:
    source = "import json\nfor INDEX in range(3): pass\ndef work(): return INDEX"
    assert code_digest(load(source).work) == code_digest(load(source.replace("3", "4")).work) != ""


# --- code: all sorts of callables ---------------------------------------------------------------------------------


def test_lambdas_are_told_apart_by_line_and_parameters(load: Load) -> None:
    source = """
        ä = "ü"; pair = (lambda x: x + 1, lambda y: y + 2)
        add = lambda f, **k: f
        long = add(
            lambda a, *, b: (
                a + b
            ), retries=1)
    """
    module = load(source)
    assert code_digest(module.pair[0]) != code_digest(module.pair[1])
    assert code_digest(load(source.replace("y + 2", "y + 3")).pair[0]) == code_digest(module.pair[0])
    assert code_digest(load(source.replace("x + 1", "x + 3")).pair[0]) != code_digest(module.pair[0])
    assert code_digest(load(source.replace("retries=1", "retries=2")).long) == code_digest(module.long)
    assert code_digest(load(source.replace("a + b", "a - b")).long) != code_digest(module.long)


def test_decorated_and_nested_classes_are_seen_whole(load: Load) -> None:
    source = """
        def marked(kind): return lambda cls: cls
        class Outer:
            @marked(1)
            class Inner:
                async def run(self):
                    class Deep:
                        x = 1
                    return Deep
        def work(): return Outer.Inner
        inner = Outer.Inner
    """
    base = load(source)
    for old, new in (("marked(1)", "marked(2)"), ("x = 1", "x = 2"), ("lambda cls: cls", "lambda cls: None")):
        assert code_digest(load(source.replace(old, new)).work) != code_digest(base.work)
    assert code_digest(load(source.replace("marked(1)", "marked(2)")).inner) != code_digest(base.inner)


def test_lambdas_that_look_alike_on_one_line_change_together(load: Load) -> None:
    source = "pair = (lambda: 1, lambda: 2)"
    assert code_digest(load(source).pair[0]) != code_digest(load(source.replace("2", "3")).pair[0])


def test_nested_functions_are_seen_wherever_they_stand(load: Load) -> None:
    source = """
        def outer():
            if True:
                def inner(x):
                    '''Keeps
                its text.'''
                    return x
            return inner
    """
    flat = "def inner(x):\n    '''Keeps\n                its text.'''\n    return x\n"
    assert code_digest(load(source).outer()) != ""
    tokens = fingerprint._significant_tokens(flat.splitlines(keepends=True))
    piece = fingerprint._piece(load(source).outer())
    assert piece is not None
    assert "return" in piece.tokens
    assert [token for token in tokens if token == "\x01{"] == [token for token in piece.tokens if token == "\x01{"]


def test_wrappers_methods_partials_and_objects_show_what_is_behind_them(load: Load) -> None:
    source = """
        import functools
        def inner(x): return x
        @functools.lru_cache
        def cached(x): return inner(x)
        class Worker:
            def __call__(self): return self.run()
            def run(self): return 1
            @classmethod
            def make(cls): return 2
        worker = Worker()
        part = functools.partial(inner, 1)
        other = functools.partial(inner, 2)
        odd = functools.partial(inner, object())
        calls = (worker, worker.run, Worker.make, Worker, cached, part)
        def uses(): return cached(1)
    """
    one, two = load(source), load(source.replace("return 1", "return 3").replace("return x", "return -x"))
    for mine, theirs in zip(one.calls, two.calls, strict=True):
        assert code_digest(mine) not in ("", code_digest(theirs))
    assert code_digest(one.part) != code_digest(one.other)
    assert code_digest(one.odd) != ""
    assert code_digest(one.uses) != code_digest(two.uses)


def test_code_that_cannot_be_seen_has_no_digest(load: Load) -> None:
    names: dict[str, Any] = {}
    exec("def typed(): return 1\nshort = lambda: 1\nclass Typed: ...", names)
    assert code_digest(len) == code_digest(dict) == ""
    assert code_digest(names["typed"]) == code_digest(names["short"]) == ""
    assert code_digest(functools.partial(len)) == ""
    assert code_digest(names["Typed"]) == ""
    module = load("def work(): return TOP\nTOP = 1\nshort = lambda: 1")
    del sys.modules[module.__name__]
    assert code_digest(module.work) != ""
    moved = load("short = lambda: 1")
    Path(str(moved.__file__)).write_text("x = 1\n", encoding="utf-8")
    assert code_digest(moved.short) == ""


def test_an_assignment_that_can_no_longer_be_read_is_left_out(load: Load) -> None:
    module = load("def work(): return TOP\nTOP = 1\n")
    Path(str(module.__file__)).write_text("def work(): return TOP\nTOP = (\n", encoding="utf-8")
    assert code_digest(module.work) != ""


def test_a_class_whose_module_is_gone_has_no_digest(load: Load) -> None:
    module = load("class Lost: ...")
    del sys.modules[module.__name__]
    assert code_digest(module.Lost) == ""


def test_what_is_named_but_cannot_be_read_is_left_out(load: Load) -> None:
    module = load("def work(): return helper() + TOP")
    exec("def helper(): return 1", vars(module))
    module.helper.__module__ = module.__name__
    vars(module)["TOP"] = 1
    assert code_digest(module.work) != ""


def test_objects_that_raise_when_asked_anything_do_no_harm(load: Load) -> None:
    source = """
        class Proxy:
            def __getattr__(self, name): raise RuntimeError("not now")
        proxy = Proxy()
        def work(): return proxy
    """
    assert code_digest(load(source).work) != code_digest(load(source.replace("not now", "never")).work)


def test_a_function_is_read_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    work = load("def work(): return 1").work
    digest = code_digest(work)
    monkeypatch.setattr(fingerprint, "_piece", lambda target: pytest.fail("read again"))
    assert code_digest(work) == digest


OTHER_PYTHONS = [path for minor in (12, 13, 14) if (path := shutil.which(f"python3.{minor}")) is not None]


@pytest.mark.skipif(not OTHER_PYTHONS, reason="no other Python here")
def test_tokens_are_the_same_on_every_python(tmp_path: Path) -> None:
    source = (
        'def f(a):\n    x = f"{a!r:>{3}} {f\'{a}\'} {{}}"  # why\n    return rf"""\n  {x:%Y} \'t\' """, b"", \'s\'\n'
    )
    script = tmp_path / "tokens.py"
    text = Path(fingerprint.__file__).read_text(encoding="utf-8")
    start, end = text.index("_SKIPPED ="), text.index("_digests:")
    functions = text[text.index("def _significant_tokens") : text.index("def _without_task_decorator")]
    script.write_text(
        f"import sys, tokenize\nfrom collections.abc import Sequence\n{text[start:end]}\n{functions}\n"
        f"print(_significant_tokens({source.splitlines(keepends=True)!r}))\n",
        encoding="utf-8",
    )
    commands = [[python, str(script)] for python in (sys.executable, *OTHER_PYTHONS)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=False) for command in commands]
    assert runs[0].returncode == 0
    # A name on the path need not lead to a Python that runs.
    assert {run.stdout for run in runs if run.returncode == 0} == {runs[0].stdout}

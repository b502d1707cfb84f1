"""Workflow files: the same language as Python, with every problem told at its line."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.dag.define.cron import Cron
from agentos.dag.define.settings import DEFAULTS
from agentos.dag.define.task import Approve, Concurrency, ForEach, Repeat, Retry
from agentos.dag.define.yaml_file import KEYS, read_workflow
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.exceptions import WorkflowDefinitionError
from agentos.ids import TaskId

T = TaskId

RELEASE = """\
name: release
params: {target: src}
secrets: [DEPLOY_TOKEN]
max_concurrency: 4
env: {CI: "1"}
defaults: {timeout_s: 900}
tasks:
  lint:   {run: "ruff check ${{ params.target }}", effects: none}
  notes:  {needs: lint, python: "mypkg.notes:write", inputs: {log: "${{ tasks.lint.output.stdout }}"}}
  review: {needs: [notes], agent: claude, prompt: "Review ${{ tasks.notes.output }}", permissions: read}
  each:   {needs: notes, for_each: "${{ tasks.notes.output.files }}", as: file, key: file, run: ["wc", "-l", "${{ file }}"], effects: none}
  ship:   {needs: [review, each], approve: "Ship it?", run: ./ship.sh, effects: [files, external], idempotent: keyed, env: {CHANNEL: stable}}
"""  # noqa: E501


def planned(text: str, params: dict[str, Any] | None = None) -> Plan:
    return compile_plan(read_workflow(dedent(text).encode(), file="x.yaml", name="x"), params)


def told(text: str, params: dict[str, Any] | None = None) -> list[str]:
    """Every problem, as it is printed."""
    with pytest.raises(WorkflowDefinitionError) as caught:
        planned(text, params)
    return list(map(str, caught.value.findings))


def test_the_example_of_the_contract_is_planned() -> None:
    plan = planned(RELEASE)
    assert plan.name == "release"
    assert plan.layers == (("lint",), ("notes",), ("review", "each"), ("ship",))
    assert (plan.settings.max_concurrency, plan.settings.secrets) == (4, ("DEPLOY_TOKEN",))
    assert plan.params == {"target": "src"}
    assert {task.definition.timeout_s for task in plan.tasks.values()} == {900}
    assert plan.tasks[T("ship")].definition.approve == Approve(question="Ship it?")


def test_everything_that_can_be_said() -> None:
    plan = planned(
        """
        params: {target: src, version: , files: [a, b]}
        schedule: layers
        decision_points: on_error
        tasks:
          build:
            run: make ${{ params.target }}
            description: builds it
            cwd: sub
            retries: {retries: 3, backoff_s: 0.5}
            concurrency: {group: cpu, slots: 2}
            isolation: process
            continue_on_error: true
            produces: [out.bin]
            output: json
          ask: {approval: {question: Go on?, timeout_s: 60, on_timeout: approve}}
          each: {for_each: "${{ params.files }}", as: file, key: file, max_failures: 2, run: [wc, "${{ file }}"]}
          draft: {run: 'echo "${{ tasks.review.output.stdout || ''first'' }}"', effects: none}
          review: {needs: draft, run: echo good, effects: none, if: success()}
          polish: {repeat: {tasks: [draft, review], until: "tasks.review.output.stdout == 'good'", max: 3}}
          call: {python: "a.b:c", inputs: {x: 1, v: "${{ params.version }}"}, idempotent: yes, effects: external}
        """,
        {"version": "1.0"},
    )
    build = plan.tasks[T("build")].definition
    assert (build.cwd, build.output, build.isolation, build.produces) == ("sub", "json", "process", ("out.bin",))
    assert (build.retry, build.concurrency) == (Retry(retries=3, backoff_s=0.5), Concurrency(group="cpu", slots=2))
    assert build.continue_on_error
    assert plan.tasks[T("ask")].definition.approve == Approve(question="Go on?", timeout_s=60, on_timeout="approve")
    each = plan.tasks[T("each")].definition.for_each
    assert each == ForEach(items="${{ params.files }}", as_="file", key="file", max_failures=2)
    group = Repeat(tasks=("draft", "review"), until="tasks.review.output.stdout == 'good'", max=3)
    assert plan.tasks[T("polish")].definition.repeat == group
    assert plan.tasks[T("draft")].definition.needs == ()
    assert (plan.tasks[T("call")].definition.call, plan.tasks[T("call")].definition.idempotent) == ("a.b:c", "yes")
    assert plan.settings.decision_points == "on_error"


def test_the_name_of_the_file_is_the_default() -> None:
    assert planned("tasks: {a: {run: ls}}").name == "x"
    assert planned("name: 12\ntasks: {a: {run: ls}}").name == "12"


def test_text_stays_as_it_was_written_where_text_is_wanted() -> None:
    plan = planned(
        """
        env: {PYTHON: 3.10, CI: true, NOTHING: , OCTAL: 0x1f}
        defaults: {env: {SHARED: 1.0, OWN: a}}
        tasks:
          a: {run: [echo, 1.50, on, 007, yes, "${{ params }}"], env: {OWN: 2.0}}
        """
    )
    assert plan.settings.env == {"PYTHON": "3.10", "CI": "true", "NOTHING": "", "OCTAL": "0x1f"}
    definition = plan.tasks[T("a")].definition
    assert definition.run == ("echo", "1.50", "on", "007", "yes", "${{ params }}")
    assert definition.env == {"SHARED": "1.0", "OWN": "2.0"}


def test_a_parameter_with_nothing_behind_it_must_be_given() -> None:
    text = "params: {a: , b: null, c: 3}\ntasks:\n  t: {run: 'echo ${{ params }}'}"
    assert told(text) == ["x.yaml:1:10: params: the run's parameter 'a' is missing"]
    asked = text.replace("params }}", "params.a }}")
    assert told(asked) == ["x.yaml:1:10: params: the run's parameter 'a' is missing"]
    assert planned(text, {"a": 1}).params == {"b": None, "c": 3, "a": 1}
    listed = "params: [a, b]\ntasks:\n  t: {run: 'echo ${{ params }}'}"
    assert len(told(listed)) == 2
    assert planned(listed, {"a": 1, "b": 2}).params == {"a": 1, "b": 2}


def test_a_parameter_has_to_be_declared() -> None:
    text = "params: {target: a}\ntasks:\n  t:\n    run: echo ${{ params.tagret }} ${{ params.other || 'x' }}\n"
    why = "`params.tagret`: `params` declares no 'tagret' (did you mean 'target'?)"
    assert told(text) == [f"x.yaml:4:10: tasks.t.run: {why}"]


def test_an_undeclared_secret_is_told_where_it_is_used() -> None:
    text = "secrets: [DEPLOY_TOKEN]\ntasks:\n  t:\n    run: ls\n    env: {A: '${{ secrets.DEPLOY_TOKN }}'}\n"
    (message,) = told(text)
    assert message.startswith("x.yaml:5:14: tasks.t: `secrets.DEPLOY_TOKN`: ")


def test_defaults_are_for_tasks_that_run_something() -> None:
    plan = planned(
        """
        defaults: {timeout_s: 5, effects: external, retries: 2, output: json, cwd: sub}
        tasks:
          a: {run: ls}
          b: {run: ls, timeout_s: 9, effects: none, output: ""}
          c: {python: "m:f"}
          ask: {approval: Really?}
          loop: {repeat: {tasks: [a], until: "true", max: 2}}
        """
    )
    a, b, c, ask, loop = (plan.tasks[T(name)].definition for name in ("a", "b", "c", "ask", "loop"))
    assert (a.timeout_s, a.effects, a.retry.retries, a.output, a.cwd) == (5, ("external",), 2, "json", "sub")
    assert (b.timeout_s, b.effects, b.output) == (9, ("none",), "")
    assert (c.timeout_s, c.effects, c.output) == (5, ("external",), "")
    assert (ask.timeout_s, ask.approve) == (None, Approve(question="Really?"))
    assert loop.timeout_s is None


# --- problems ------------------------------------------------------------------------------------------------------


def test_every_problem_is_told_at_once_and_at_its_line() -> None:
    assert told(
        """\
        nmae: release
        params: {target: src, need: }
        max_concurrency: 0
        schedule: redy
        env: {A: "${{ tasks.x }}"}
        defaults: {timeout_s: -1, retries: x, run: ls, efects: none}
        tasks:
          lint: {run: "ruff check", effects: nne}
          lint: {run: "ls"}
          notes: {needs: [lint, lnit], python: "mypkg.notes", inputs: {log: "${{ tasks.lnt.output.stdout }}"}}
          rvw: {need: [notes], rnu: claude}
          both: {run: a, python: "m:f", foo: bar}
          empty:
          none: {run: }
          str: ls -l
          c1: {needs: c2, run: ls}
          c2: {needs: c1, run: ls}
          e:
            run: ls
            env: {A: [1]}
            timeout_s: "3"
            retries: {retris: 3}
            if: "a = b"
            repeat: {tasks: [zz], until: "x", max: 0}
        """
    ) == [
        "x.yaml:1:1: unknown key 'nmae' (did you mean 'name'?)",
        "x.yaml:2:23: params: the run's parameter 'need' is missing",
        "x.yaml:3:18: max_concurrency: max_concurrency must be 1 or more, not 0",
        "x.yaml:4:11: schedule: schedule is one of layers, ready, not 'redy' (did you mean 'ready'?)",
        "x.yaml:5:6: env: env A: ${{ tasks.x }} is not known to the whole run, only params and secrets are",
        "x.yaml:6:23: defaults.timeout_s: timeout_s must be more than 0, not -1",
        "x.yaml:6:36: defaults.retries: retries takes a number, or a map, not 'x'",
        "x.yaml:6:39: defaults: 'run' is for a task to say",
        "x.yaml:6:48: defaults: unknown key 'efects' (did you mean 'effects'?)",
        "x.yaml:8:38: tasks.lint.effects: effects takes 'none', 'files', 'external', not 'nne' (did you mean 'none'?)",
        "x.yaml:9:3: the key 'lint' is here twice: it is in line 8 already",
        "x.yaml:10:25: tasks.notes.needs: unknown need: there is no task 'lnit' (did you mean 'lint'?)",
        "x.yaml:10:40: tasks.notes.python: python takes 'module:function', not 'mypkg.notes'",
        "x.yaml:10:69: tasks.notes.inputs.log: `tasks.lnt.output.stdout`: there is no task 'lnt' "
        "(did you mean 'lint'?)",
        "x.yaml:11:9: tasks.rvw.need: unknown setting 'need' (did you mean 'needs'?)",
        "x.yaml:11:24: tasks.rvw.rnu: nothing says what it does: give one of run, python, agent, llm, approval "
        "(did you mean 'run'?)",
        "x.yaml:12:26: tasks.both.python: run and python: a task does one of them",
        "x.yaml:12:33: tasks.both.foo: unknown setting 'foo'",
        "x.yaml:13:3: tasks.empty: a task is a map of settings",
        "x.yaml:14:10: tasks.none.run: run is empty",
        "x.yaml:15:3: tasks.str: a task is a map of settings, not 'ls -l'",
        "x.yaml:16:15: tasks.c1.needs: cycle: c1 -> c2 -> c1 (each needs the next)",
        "x.yaml:20:10: tasks.e.env: env A takes text, not [1]",
        "x.yaml:21:16: tasks.e.timeout_s: timeout_s takes a number of seconds, not '3'",
        "x.yaml:22:15: tasks.e.retries: unknown key 'retris' in retries (did you mean 'retries'?)",
        "x.yaml:23:9: tasks.e.if: expected and, or, a comparison or the end (write `==`), found '=' at character 3 of "
        "'a = b'",
        "x.yaml:24:13: tasks.e.repeat: max must be 1 or more, not 0",
        "x.yaml:24:22: tasks.e.repeat: unknown need: there is no task 'zz'",
        "x.yaml:24:34: tasks.e.repeat: `x`: a reference begins with params, tasks, secrets",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "x.yaml:1:1: a workflow file is a map with `tasks`, this one is a list"),
        ("hello", "x.yaml:1:1: a workflow file is a map with `tasks`, this one is a single value"),
        ("", "x.yaml: the file is empty"),
        ("name: x", "x.yaml:1:1: there are no tasks: `tasks` is a map of ids and what each task does"),
        ("tasks:", "x.yaml:1:1: there are no tasks: `tasks` is a map of ids and what each task does"),
        ("tasks: {}", "x.yaml:1:1: there are no tasks: `tasks` is a map of ids and what each task does"),
        ("tasks: [a]", "x.yaml:1:8: tasks: tasks takes a map of ids and what each task does"),
        ("name: [a]\ntasks: {a: {run: ls}}", "x.yaml:1:7: name: the name is text"),
        ("tasks: {a: {run: echo ${{ params }}}}", "text with ${{ }} has to stand in quotes"),
        ("on: push\ntasks: {a: {run: ls}}", "x.yaml:1:1: unknown key 'on'"),
        ("jobs: {a: {run: ls}}", "x.yaml:1:1: unknown key 'jobs'"),
        ("params: 3\ntasks: {a: {run: ls}}", "x.yaml:1:9: params: params takes a map of names and defaults, or a list"),
        ("params: {a b: 3}\ntasks: {a: {run: ls}}", "x.yaml:1:10: params: 'a b' cannot be the name of a parameter"),
        ("defaults: 3\ntasks: {a: {run: ls}}", "x.yaml:1:11: defaults: defaults takes a map of settings"),
        ("secrets: 3\ntasks: {a: {run: ls}}", "x.yaml:1:10: secrets: secrets takes names of environment variables"),
        ("env: [a]\ntasks: {a: {run: ls}}", "x.yaml:1:7: env: env takes a map, not ['a']"),
        ('tasks: {"a\\nb": {run: ls}}', "x.yaml:1:9: tasks[\"a\\nb\"]: 'a\\nb' holds control characters"),
        (f"tasks: {{{'x' * 201}: {{run: ls}}}}", "characters, 200 are allowed"),
        ("tasks: {a: {run: ls, for_each: [1], as: 3}}", "x.yaml:1:32: tasks.a.for_each: "),
        ("tasks: {a: {run: ls, as: x}}", "x.yaml:1:9: tasks.a: as without for_each"),
        ("tasks: {a: {run: \"echo '${{ params }}'\"}}", "x.yaml:1:18: tasks.a.run: `params` stands in single quotes"),
        ("tasks: {a: {approval: }}", "x.yaml:1:13: tasks.a.approval: approval is empty"),
        ("tasks: {a: {agent: claude}}", "x.yaml:1:20: tasks.a.agent: agent tasks need a prompt"),
        ("tasks: {a: {run: ls, prompt: x}}", "x.yaml:1:22: tasks.a.prompt: 'prompt' is a setting of agent and llm"),
        ("schedule: ready\ntasks: {a: {run: ls}}", "x.yaml:1:11: schedule: schedule 'ready' lets file changes"),
        (
            "tasks: {a: {run: ls, isolation: box}}",
            "x.yaml:1:33: tasks.a.isolation: isolation takes 'process', 'worktree'",
        ),
    ],
)
def test_one_problem_is_told_where_it_stands(text: str, problem: str) -> None:
    messages = told(text)
    assert any(problem in message for message in messages), messages


def test_a_problem_with_a_huge_value_is_told_in_short() -> None:
    (message,) = told(f"tasks: {{a: {{run: ls, timeout_s: {'x' * 100_000}}}}}")
    assert len(message) < 800


def test_what_was_wrong_with_a_default_is_told_once() -> None:
    tasks = "\n".join(f"  t{n}: {{run: ls}}" for n in range(50))
    assert told(f"defaults: {{timeout_s: 0}}\ntasks:\n{tasks}") == [
        "x.yaml:1:23: defaults.timeout_s: timeout_s must be more than 0, not 0"
    ]


def test_a_parameter_that_is_missing_or_unknown_is_told_with_the_nearest() -> None:
    text = "params: {version: , dry: false}\ntasks:\n  t: {run: 'echo ${{ params.version }}'}"
    messages = told(text, {"verison": "1"})
    assert any("the run's parameter 'version' is missing (did you mean 'verison'?)" in message for message in messages)
    assert any("no task takes the parameter 'verison' (did you mean 'version'?)" in message for message in messages)


# --- anything at all -----------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    [*KEYS, *DEFAULTS, "run", "python", "approval", "agent", "needs", "if", "for_each", "repeat", "as", "key", "inputs",
     "a", "b", "${{ params.x }}", "${{", "success()", "m:f", "tasks", "until", "max", "question"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


def as_yaml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(st.dictionaries(WORDS, ANYTHING, max_size=4), st.dictionaries(WORDS, ANYTHING, max_size=3))
def test_a_file_of_any_shape_is_planned_or_told(top: dict[str, Any], tasks: dict[str, Any]) -> None:
    findings: tuple[object, ...] = ()
    try:
        planned(as_yaml({**top, "tasks": tasks}))
    except WorkflowDefinitionError as error:
        findings = error.findings
    assert all(str(finding).startswith("x.yaml") for finding in findings)


@given(st.binary(max_size=100))
def test_any_bytes_are_planned_or_told(data: bytes) -> None:
    with pytest.raises(WorkflowDefinitionError):
        compile_plan(read_workflow(data, file="x.yaml", name="x"))


def test_when_it_runs_by_itself_is_a_setting_and_makes_it_no_other_workflow() -> None:
    text = "tasks: {a: {run: ls}}\n"
    plan = planned('cron: {at: "0 3 * * *", zone: Europe/Berlin, overlap: queue}\n' + text)
    assert plan.settings.cron == Cron(at="0 3 * * *", zone="Europe/Berlin", overlap="queue")
    assert plan.fingerprint == planned(text).fingerprint
    assert planned("cron: {every: 15m}\n" + text).settings.cron == Cron(every="15m")


def test_a_time_that_never_comes_is_told_at_its_line() -> None:
    text = 'name: x\ncron: {at: "0 0 30 2 *", zone: Europe/Berln}\ntasks: {a: {run: ls}}\n'
    assert told(text) == ["x.yaml:2:32: cron: there is no time zone 'Europe/Berln' (did you mean 'Europe/Berlin'?)"]
    assert told(text.replace("Berln", "Berlin"))[0].startswith("x.yaml:2:12: cron: '0 0 30 2 *' is no cron expression")

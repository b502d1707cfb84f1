"""`agentos check`"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from shutil import which

import jsonschema
import pytest

from agentos.cli.json_shapes import output_schema
from agentos.tasks.llm.list_prices import AS_OF
from tests.cli.conftest import SOURCES, Agentos

RELEASE = """\
name: release
params: {target: src, version: }
tasks:
  lint: {run: "ruff check ${{ params.target }}", effects: none}
  test: {run: "pytest ${{ params.target }}"}
  build: {run: make}
  ship: {needs: [lint, test, build], approve: "Ship ${{ params.version }}?", run: ./ship.sh, effects: [files, external]}
  tell: {needs: ship, if: always(), for_each: [a, b], run: ["echo", "${{ item }}"], effects: none}
"""


def write(root: Path, text: str | bytes, name: str = "flow.yaml") -> Path:
    path = root / "workflows" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def everything(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_the_plan_with_layers_gates_effects_and_warnings(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo, RELEASE)
    done = agentos("check", "flow", cwd=tmp_git_repo)
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "workflows/flow.yaml: release, 5 tasks in 3 layers\n"
        "  schedule: layers, one layer after the other (test, build, ship have effects)\n"
        '  parameters: target="src", version (required)\n'
        "  layer 1  lint   shell  effects none\n"
        "           test   shell  effects files\n"
        "           build  shell  effects files\n"
        "  layer 2  ship   shell  effects files+external; needs lint, test, build; asks 'Ship ${{ params.version }}?'\n"
        "  layer 3  tell   shell  effects none; for each item; if always(); needs ship\n"
        "  warning: layer 1: 'test', 'build' may change files at the same time: if the run is killed meanwhile, those "
        "that overlapped are repeated. isolation 'worktree' avoids it\n"
    )


def test_nothing_is_run_or_written(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo, "tasks:\n  a: {run: touch ran}\n  b: {python: 'loud_lib:f'}\n")
    write(
        tmp_git_repo, "print('hello from import')\nfrom agentos import Workflow\nflow = Workflow('w')\n", "loud_flow.py"
    )
    (tmp_git_repo / "loud_lib.py").write_text("open('imported', 'w')\ndef f(): ...\n")
    before = everything(tmp_git_repo)
    done = agentos("check", "--json", "flow", "loud_flow", cwd=tmp_git_repo)
    assert done.code == 0
    assert [one["file"] for one in json.loads(done.out)] == ["workflows/flow.yaml", "workflows/loud_flow.py"]
    assert "hello from import" in done.err
    assert everything(tmp_git_repo) == before


def test_every_problem_of_every_file(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo, "tasks:\n  a: {rnu: ls}\n  b: {needs: c, run: ls}\n", "one.yaml")
    write(tmp_git_repo, "tasks: [", "two.yaml")
    write(tmp_git_repo, "tasks: {a: {run: ls}}", "good.yaml")
    bad = "from agentos import Workflow\nflow = Workflow('w')\nflow.add('x', lambda: 1, needs='y', retries=-1)\n"
    write(tmp_git_repo, bad, "three.py")
    done = agentos("check", "one", "two", "good", "three", "four", cwd=tmp_git_repo)
    assert done.code == 2
    assert done.out.splitlines() == [
        "workflows/one.yaml:2:7: tasks.a.rnu: nothing says what it does: give one of run, python, agent, llm, approval "
        "(did you mean 'run'?)",
        "workflows/one.yaml:3:14: tasks.b.needs: unknown need: there is no task 'c'",
        "workflows/two.yaml:1:9: not YAML: while parsing a flow node did not find expected node content",
        "workflows/good.yaml: good, 1 task in 1 layer",
        "  schedule: layers, one layer after the other (a has effects)",
        "  layer 1  a  shell  effects files",
        "workflows/three.py: task 'x': bad setting: retries must be 0 or more, not -1",
        "workflows/three.py: task 'x': unknown need: there is no task 'y'",
        f"four: there is no workflow 'four': no workflows/four.yaml, .yml or .py in {tmp_git_repo}; "
        "there are good, one, three, two",
    ]
    assert done.err == "6 problems in 4 of 5 files; nothing was run.\n"
    quiet = agentos("check", "-q", "one", "good", cwd=tmp_git_repo)
    assert len(quiet.out.splitlines()) == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("agent: cluade, prompt: hi", "did you mean 'claude'"),
        ("agent: claude", "agent tasks need a prompt"),
        ("agent: command, prompt: hi", "agent 'command' needs `command`"),
        ("agent: claude, prompt: hi, command: [x]", "`command` is for agent 'command'"),
        ("agent: claude, prompt: hi, permissions: root", "permissions is one of read, edit, full, not 'root'"),
        ("agent: codex, prompt: hi, allowed_tools: [Bash]", "codex takes no list of allowed tools"),
        ("agent: gemini, prompt: hi, on_resume: fork", "gemini cannot copy a session"),
        ("agent: claude, prompt: hi, allowed_tools: Bash", "allowed_tools takes a list"),
    ],
)
def test_what_an_agent_cannot_do_is_a_problem(agentos: Agentos, tmp_git_repo: Path, settings: str, told: str) -> None:
    write(tmp_git_repo, f"tasks:\n  a: {{{settings}}}\n")
    done = agentos("check", "flow", cwd=tmp_git_repo)
    assert done.code == 2
    assert told in done.out
    assert ":2:" in done.out, "the line is named"


def test_json_is_as_documented(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(tmp_git_repo, RELEASE)
    write(tmp_git_repo, "tasks:\n  a: {rnu: ls}\n", "bad.yaml")
    done = agentos("check", "--json", "flow", "bad", "none", cwd=tmp_git_repo)
    told = json.loads(done.out)
    jsonschema.validate(told, output_schema("check"))
    assert (done.code, done.err) == (2, "")
    good, bad, none = told
    assert good["layers"] == [["lint", "test", "build"], ["ship"], ["tell"]]
    assert good["params"] == [
        {"name": "target", "required": False, "default": "src", "type": "", "help": "", "choices": []},
        {"name": "version", "required": True, "default": None, "type": "", "help": "", "choices": []},
    ]
    assert good["tasks"][3]["gate"] == "Ship ${{ params.version }}?"
    assert [(one["line"], one["column"], one["where"]) for one in bad["problems"]] == [(2, 7, "tasks.a.rnu")]
    assert none["problems"][0]["problem"] == "bad file"


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("a.yaml", b"", "the file is empty"),
        ("a.yaml", b"\x7fELF\0\1", "this is a binary file"),
        ("a.yaml", b"tasks: \xff", "workflows/a.yaml:1:8: not UTF-8"),
        ("a.yaml", b"x" * 10_000_000, "more than 8 MiB"),
        ("a.yaml", b"tasks: " + b"[" * 50_000, "nested more than 64 deep"),
        ("a.yaml", b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c]\n" % (c, c, c - 1, c - 1) for c in range(98, 122)),
         "more than 1,000,000 values"),
        ("a.yaml", b"tasks: {a: {run: ls}}\ntasks: {}", "the key 'tasks' is here twice"),
        ("a.yaml", b"tasks: !!python/object/apply:os.system [touch pwned]", "the tag !!python/object/apply:os.system"),
        ("a.yaml", b"tasks: {a: {needs: b, run: x}, b: {needs: a, run: x}}", "cycle: a -> b -> a"),
        ("a.yaml", b'tasks: {"a/b\\n\\x1b[2J": {run: x}}', 'tasks["a/b\\n\\u001b[2J"]'),
        ("a.yaml", b"tasks: {a: {kind: magic}}", "nothing says what it does"),
        ("a.py", b"\xff\xfe", "cannot be imported"),
        ("a.py", b"1/0", "ZeroDivisionError"),
        ("a.py", b"", "it defines no workflow"),
    ],
)  # fmt: skip
def test_broken_input_is_one_clear_message(
    agentos: Agentos, tmp_git_repo: Path, name: str, data: bytes, told: str
) -> None:
    write(tmp_git_repo, data, name)
    done = agentos("check", f"workflows/{name}", cwd=tmp_git_repo)
    assert done.code == 2
    assert told in done.out
    assert "Traceback" not in done.err
    assert "\x1b" not in done.out
    assert not list(tmp_git_repo.rglob("pwned"))


@pytest.mark.parametrize("target", [".", "/", "workflows", "none.yaml", "/etc/passwd", "/dev/zero"])
def test_what_is_no_workflow_file(agentos: Agentos, tmp_git_repo: Path, target: str) -> None:
    write(tmp_git_repo, RELEASE)
    done = agentos("check", target, cwd=tmp_git_repo)
    assert done.code == 2
    assert len(done.out.splitlines()) == 1
    assert "Traceback" not in done.err


def test_it_works_outside_a_repository_and_in_a_subdirectory(
    agentos: Agentos, tmp_git_repo: Path, tmp_path: Path
) -> None:
    write(tmp_git_repo, RELEASE)
    (tmp_git_repo / "sub").mkdir()
    assert agentos("check", "flow", cwd=tmp_git_repo / "sub").code == 0
    (tmp_path / "plain").mkdir()
    write(tmp_path / "plain", RELEASE)
    assert agentos("check", "flow", cwd=tmp_path / "plain").code == 0
    assert agentos("check", "flow", "--repo", tmp_git_repo, cwd=tmp_path).code == 0
    assert not (tmp_git_repo / ".agentos").exists()


@pytest.mark.full
def test_ten_thousand_tasks(agentos: Agentos, tmp_git_repo: Path) -> None:
    tasks = "".join(f"  t{n}: {{run: echo {n}, effects: none, needs: [t{n - 100}]}}\n" for n in range(100, 10_000))
    first = "".join(f"  t{n}: {{run: echo {n}, effects: none}}\n" for n in range(100))
    write(tmp_git_repo, f"tasks:\n{first}{tasks}")
    began = time.monotonic()
    done = agentos("check", "flow", cwd=tmp_git_repo)
    assert done.code == 0, done.err
    assert "10,000 tasks in 100 layers" in done.out
    assert time.monotonic() - began < 40  # about 2 seconds; the bound is for a busy machine


def test_a_reader_that_has_enough(tmp_git_repo: Path) -> None:
    write(tmp_git_repo, "tasks:\n" + "".join(f"  t{n}: {{run: echo, effects: none}}\n" for n in range(5000)))
    program = f"{sys.executable} -m agentos check flow | head -1"
    done = subprocess.run(
        ["bash", "-c", program], cwd=tmp_git_repo, capture_output=True, text=True, env={"PYTHONPATH": str(SOURCES)}
    )
    assert "Traceback" not in done.stderr
    assert done.stdout == "workflows/flow.yaml: flow, 5,000 tasks in 1 layer\n"


def test_what_speaks_against_running_a_task_twice_is_a_warning(agentos: Agentos, tmp_git_repo: Path) -> None:
    """Hints come from the text alone: the YAML task's module would say so if it were imported."""
    (tmp_git_repo / "logs.py").write_text("print('imported')\ndef note():\n    open('log', 'a').write('x')\n")
    write(
        tmp_git_repo,
        "tasks:\n  a: {run: 'echo x >> log'}\n  b: {python: 'logs:note', idempotent: true, needs: a}\n"
        "  c: {run: 'git push', effects: external, needs: b}\n",
    )
    write(
        tmp_git_repo,
        "from agentos import Workflow\nflow = Workflow('w')\n\n\n@flow.task\ndef note():\n    open('log', 'ab')\n",
        "hint_flow.py",
    )
    done = agentos("check", "--json", "flow", "hint_flow", cwd=tmp_git_repo)
    assert (done.code, done.err) == (0, "")
    assert [one["warnings"] for one in json.loads(done.out)] == [
        [
            "task 'a' may not be safe to run twice: it appends to log",
            "task 'b' is declared idempotent, but it opens 'log' for appending",
        ],
        ["task 'note' may not be safe to run twice: it opens 'log' for appending"],
    ]


def test_an_agent_that_is_not_signed_in_is_told(
    agentos: Agentos, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "codex").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    (tmp_git_repo / "flow.yaml").write_text("tasks:\n  fix: {agent: codex, prompt: x}\n")
    said = "codex seems not to be signed in: start `codex` once, or set OPENAI_API_KEY"
    assert said in agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert said not in agentos("check", "flow.yaml", cwd=tmp_git_repo, env={"OPENAI_API_KEY": "sk-1"}).out
    (tmp_path / "auth.json").touch()
    assert said not in agentos("check", "flow.yaml", cwd=tmp_git_repo).out


def test_what_is_not_installed_and_what_a_budget_relies_on(
    agentos: Agentos, tmp_git_repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "git").symlink_to(which("git") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    fix = 'fix: {agent: codex, model: gpt-5, prompt: "x"}'
    (tmp_git_repo / "flow.yaml").write_text(
        f"budget: 5\ntasks:\n  {fix}\n  note: {{needs: fix, llm: NAME, prompt: x}}\n"
    )
    told = agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert "codex is not installed here" in told
    assert "a run would be refused: there is a budget in dollars, and there is no price for 'NAME'" in told
    flow = (tmp_git_repo / "flow.yaml").read_text()
    (tmp_git_repo / "flow.yaml").write_text(flow.replace("NAME", "gpt-5-mini"))
    told = agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert f"the budget counts 'gpt-5', 'gpt-5-mini' at the list price of {AS_OF}" in told
    (tmp_git_repo / "agentos.toml").write_text('[prices."gpt-5"]\ninput_per_million = 1\noutput_per_million = 2\n')
    told = agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert "the budget counts 'gpt-5-mini' at the list price" in told


PURE = "tasks:\n  a: {run: echo a, effects: none}\n  b: {run: echo b, effects: none, needs: a}\n"


@pytest.mark.parametrize(
    ("flow", "schedule", "why"),
    [
        (PURE, "ready", "no task has effects"),
        (f"schedule: layers\n{PURE}", "layers", "the workflow says so"),
        (f"decision_points: on_error\n{PURE}", "layers", "decision points stand between layers"),
        (PURE.replace("none, needs", "external, needs"), "layers", "b has effects"),
        (PURE.replace("none", "files"), "layers", "a, b have effects"),
    ],
)
def test_the_schedule_is_told_with_its_reason(
    agentos: Agentos, tmp_git_repo: Path, flow: str, schedule: str, why: str
) -> None:
    (tmp_git_repo / "flow.yaml").write_text(f"name: flow\n{flow}")
    said = agentos("check", "flow.yaml", cwd=tmp_git_repo).out
    assert f"  schedule: {schedule}, " in said
    assert f" ({why})\n" in said
    [told] = json.loads(agentos("check", "flow.yaml", "--json", cwd=tmp_git_repo).out)
    assert (told["schedule"], told["schedule_reason"]) == (schedule, why)


FAN = """
name: fan
{more}
tasks:
  slow: {{run: "while [ ! -e go ]; do sleep 0.05; done", effects: none}}
  quick: {{run: "true", effects: none}}
  after: {{run: "touch go; test -e on", effects: none, needs: quick}}
"""


def test_tasks_without_effects_wait_for_nothing_but_their_needs(agentos: Agentos, tmp_git_repo: Path) -> None:
    flow = tmp_git_repo / "fan.yaml"
    flow.write_text(FAN.format(more=""))
    assert agentos("run", "fan.yaml", "--id", "r", cwd=tmp_git_repo).code == 1, "layer by layer it would never end"
    (tmp_git_repo / "on").touch()
    # Neither what was chosen nor what is said now is another definition; where it is said, it counts.
    flow.write_text(FAN.format(more="schedule: layers"))
    done = agentos("run", "fan.yaml", "--id", "r", cwd=tmp_git_repo)
    assert done.code == 0, done.err


def test_a_run_that_began_by_layers_stays_with_them(agentos: Agentos, tmp_git_repo: Path) -> None:
    flow = tmp_git_repo / "fan.yaml"
    flow.write_text(FAN.format(more="schedule: layers"))
    (tmp_git_repo / "go").touch()
    assert agentos("run", "fan.yaml", "--id", "r", cwd=tmp_git_repo).code == 1
    flow.write_text(FAN.format(more=""))
    (tmp_git_repo / "on").touch()
    assert agentos("resume", "r", "--rerun", "slow", cwd=tmp_git_repo).code == 0
    events = [json.loads(line) for line in agentos("events", "r", "--json", cwd=tmp_git_repo).out.splitlines()]
    order = {(event["type"], event.get("task_id")): event["seq"] for event in events}
    assert order["task_complete", "slow"] < order["task_start", "after"], "which does not need it"


def test_a_pattern_of_sources_that_matches_nothing_is_told(agentos: Agentos, tmp_git_repo: Path) -> None:
    write(
        tmp_git_repo,
        """
tasks:
  a: {run: make, effects: none, sources: ["scr/**", "src/**", "setup.py", {env: CHANNEL}]}
  b: {run: make, effects: none, for_each: [x], as: name, sources: ["${{ name }}/**"]}
""",
    )
    (tmp_git_repo / "src").mkdir()
    (tmp_git_repo / "src/main.py").touch()
    done = agentos("check", "flow", "--json", cwd=tmp_git_repo)
    assert done.code == 0, done.out
    assert [one for one in json.loads(done.out)[0]["warnings"] if one.startswith("sources")] == [
        "sources: no file matches 'scr/**' now",
        "sources: no file matches 'setup.py' now",
    ]

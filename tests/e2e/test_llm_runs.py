"""Runs with llm tasks, as a user has them: the program, a workflow file, a server, kills and money."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from agentos import Client
from agentos.machine import events as ev
from tests.conftest import LinkedWorktree
from tests.models.flows import FLOW, Place, crowd, keys, reviewing
from tests.models.replies import says, too_many
from tests.models.server import ModelServer


@pytest.fixture
def place(tmp_git_repo: Path, model_server: ModelServer) -> Place:
    return reviewing(tmp_git_repo, model_server)


def test_a_workflow_asks_models_and_one_uses_what_the_other_said(place: Place) -> None:
    assert place.agentos("check", "flow").code == 0
    done = place.agentos("run", "flow", "--id", "r")
    assert done.code == 0, done.err
    state = place.state()
    tasks = {task.task_id: task.output for task in state.tasks}
    assert tasks["draft"]["text"] == "The draft."
    assert tasks["review"]["json"]["verdict"] == "approve"
    assert tasks["said"]["stdout"] == "approve"
    assert [message["role"] for message in state.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert state.messages[3]["content"] == "Review: The draft."
    assert place.usage() == [("draft", 1, 0.0), ("review", 1, 0.0)]
    assert "sk-of-this-test" not in (place.root / ".agentos" / "issue_workflow.db").read_bytes().decode("latin-1")


def test_an_answer_that_does_not_fit_is_asked_for_again_with_another_key(place: Place) -> None:
    place.server.script(says("The draft."), says("hm"))
    assert place.agentos("run", "flow", "--id", "r").code == 0
    assert len(set(keys(place.server, "m2"))) == 2
    assert [calls for task, calls, _ in place.usage() if task == "review"] == [1, 1]


def test_killed_in_the_middle_of_an_answer_the_connection_is_gone_and_the_slot_free(place: Place) -> None:
    place.write(FLOW, "[limits.OPENAI_API_KEY]\nslots = 1\n")
    place.server.script(says("a long answer that takes its time", pieces=30, pause_s=0.2))
    process = place.start("run", "flow", "--id", "r")
    place.server.wait_for(lambda: len(place.server.requests) == 1, 30)
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.server.wait_for(lambda: place.server.requests[0].client_left)
    assert place.agentos("resume", "r").code == 0
    assert len(set(keys(place.server, "m1"))) == 1


def test_an_abort_closes_the_connection(place: Place) -> None:
    place.server.script(says("a long answer that takes its time", pieces=30, pause_s=0.5))
    process = place.start("run", "flow", "--id", "r")
    place.server.wait_for(lambda: len(place.server.requests) == 1, 30)
    assert place.agentos("abort", "r").code in (0, 4)
    place.server.wait_for(lambda: place.server.requests[0].client_left, 20)
    process.wait(20)


def test_while_a_provider_wants_a_long_pause_a_run_says_try_again_later_and_asks_nobody(place: Place) -> None:
    place.server.script(too_many(3600))
    done = place.agentos("run", "flow", "--id", "r")
    assert done.code == 75, done.err
    assert "no calls with OPENAI_API_KEY for another" in done.err
    assert place.agentos("resume", "r").code == 75
    assert len(place.server.requests) == 1
    (Path(os.environ["XDG_STATE_HOME"]) / "agentos" / "calls.db").unlink()
    assert place.agentos("resume", "r").code == 0


# --- money --------------------------------------------------------------------------------------------------------


PRICES = "".join(f'[prices."{model}"]\ninput_per_million = 0\noutput_per_million = 200_000\n' for model in ("m1", "m2"))


def test_what_models_were_paid_is_told_at_the_end_and_shown_later(place: Place) -> None:
    place.write(FLOW, PRICES.replace("200_000", "120"))
    done = place.agentos("run", "flow", "--id", "r")
    usage = Client(place.root).show("r").usage
    assert (usage.calls, usage.cost_usd > 0) == (2, True)
    paid = f"odels were paid $0.0012, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, 2 calls"
    shown_text = place.agentos("show", "r").out
    assert paid in done.err
    assert paid in shown_text
    assert shown_text.count("  $0.0006") == 2, "of each task"
    shown = json.loads(place.agentos("show", "r", "--json").out)
    assert shown["usage"]["calls"] == 2
    assert {task["id"]: task["usage"]["calls"] for task in shown["tasks"] if "usage" in task} == {
        "draft": 1,
        "review": 1,
    }


def test_a_budget_in_dollars_needs_prices_before_anything_runs(place: Place) -> None:
    place.write(f"budget: 1.5\n{FLOW}")
    done = place.agentos("run", "flow", "--id", "r")
    assert done.code not in (0, 3)
    assert "there is no price for 'm1', 'm2'" in done.err
    assert '[prices."m1"]' in done.err
    assert place.server.requests == []


def test_a_budget_that_is_used_up_asks_and_a_resume_does_not_reset_it(place: Place) -> None:
    place.write(f"budget: 1.0\n{FLOW}", PRICES)
    waiting = place.agentos("run", "flow", "--id", "r")
    assert waiting.code == 3, waiting.err
    assert place.agentos("resume", "r").code == 3
    assert place.usage() == [("draft", 1, 1.0)]
    assert len(place.server.requests) == 1
    assert place.agentos("approve", "r").code == 0
    assert place.usage() == [("draft", 1, 1.0), ("review", 1, 1.0)]


def test_a_yes_allows_as_much_again_beyond_what_was_spent(place: Place) -> None:
    place.write(f"budget: {{tokens: 1}}\n{FLOW}")
    assert place.agentos("run", "flow", "--id", "r").code == 3, "the first call went far beyond it"
    assert place.agentos("resume", "r").code == 3
    assert place.agentos("approve", "r").code == 0, "and one yes is enough for the next"
    assert len(place.server.requests) == 2


def test_a_budget_of_tokens_needs_no_price(place: Place) -> None:
    place.write(FLOW.replace("llm: m1\n", "llm: m1\n    budget: {tokens: 10}\n"))
    assert place.agentos("run", "flow", "--id", "r").code == 0


def test_calls_that_wait_for_a_slot_are_not_made_once_the_budget_is_used_up(
    tmp_git_repo: Path, model_server: ModelServer
) -> None:
    place = crowd(tmp_git_repo, model_server, 20)
    done = place.agentos("run", "flow", "--id", "r")
    assert done.code == 3, done.err
    assert len(model_server.requests) == 2
    assert len(place.usage()) == 2
    events = Client(place.root).events("r")
    assert not [event for event in events if isinstance(event, ev.TaskError)]
    gates = [event.gate_id for event in events if isinstance(event, ev.DecisionRequired)]
    assert len(gates) == 18
    assert all(event.put_off for event in events if isinstance(event, ev.TaskRetry))

    assert place.agentos("resume", "r").code == 3
    assert len(model_server.requests) == 2
    assert place.agentos("approve", "r", gates[0]).code == 3
    assert len(model_server.requests) == 3
    assert len(set(keys(model_server, "m1"))) == 3


def test_two_worktrees_share_the_slots_of_a_key(place: Place, tmp_worktree: LinkedWorktree) -> None:
    place.server.otherwise = says("x", pause_s=0.05)
    other = Place(tmp_worktree.worktree, place.server)
    flow = "tasks:\n" + "".join(f"  t{n}: {{llm: m1, prompt: '{n}'}}\n" for n in range(6))
    for one in (place, other):
        one.write(flow, "[limits.OPENAI_API_KEY]\nslots = 1\n")
    running = [one.start("run", "flow", "--id", "r") for one in (place, other)]
    assert [process.wait(60) for process in running] == [0, 0]
    assert (place.server.most_at_once, len(place.server.requests)) == (1, 12)


# --- what is told before anything runs ----------------------------------------------------------------------------


def test_check_and_run_tell_that_the_key_of_the_settings_is_missing(place: Place) -> None:
    place.write(FLOW, '[llm]\nkey_name = "NOT_SET_HERE"\n')
    said = "`[llm] key_name` in the settings names the variable NOT_SET_HERE, which is not set; needed by"
    checked = place.agentos("check", "flow", "--json")
    assert (checked.code, said in json.loads(checked.out)[0]["warnings"][-1]) == (0, True)
    refused = place.agentos("run", "flow")
    assert (refused.code, said in refused.err) == (2, True), refused
    assert "Nothing was run" in refused.err
    assert "is empty" in place.agentos("run", "flow", NOT_SET_HERE="").err
    assert not place.server.requests
    assert place.agentos("run", "flow", NOT_SET_HERE="sk-1").code == 0
    own = FLOW.replace("    llm: m", f"    base_url: {place.server.base_url}\n    llm: m")
    place.write(own, '[llm]\nkey_name = "NOT_SET_HERE"\n')
    assert place.agentos("run", "flow").code == 0, "a server of its own gets no key of the settings"


def test_check_tells_what_is_wrong_with_the_settings(place: Place) -> None:
    place.write(FLOW, "[llm]\nkey_name = 'sk-the-key-itself'\n")
    for argv in (("check", "flow"), ("run", "flow")):
        done = place.agentos(*argv)
        assert done.code == 1
        assert "agentos.toml is wrong: key_name is the NAME of a variable" in done.err
        assert "sk-the-key-itself" not in done.out + done.err
    assert not place.server.requests


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("prompt: hi, schema: {type: nonsense}", "the task's schema is no JSON Schema: 'nonsense' is not valid"),
        ("prompt: ''", "llm tasks need a prompt, or messages"),
        ("prompt: hi, temprature: 1", "did you mean 'temperature'?"),
        ("prompt: hi, max_tokens: 0", "max_tokens must be 1 or more"),
        ("prompt: hi, key_name: K, key_command: [pass]", "key_name and key_command: give one of them"),
        ("prompt: hi, key_command: pass show x", "key_command takes a list"),
    ],
)
def test_check_tells_what_is_wrong_with_a_call(place: Place, settings: str, said: str) -> None:
    place.write(f"tasks:\n  a: {{llm: m1, {settings}}}\n")
    done = place.agentos("check", "flow")
    assert (done.code, said in done.out) == (2, True), done.out


# --- what a server is told, and prompts in files --------------------------------------------------------------------

FILES = """
params: {topic: tests, k: 20}
tasks:
  draft: {run: [echo, drafted], effects: none}
  ask:
    llm: m1
    prompt_file: prompts/ask.md
    system_file: prompts/system.md
    reasoning_effort: high
    extra_body:
      top_k: "${{ params.k }}"
      chat_template_kwargs: {enable_thinking: false, about: "a ${{ params.topic }}"}
"""


@pytest.fixture
def prompts(tmp_git_repo: Path, model_server: ModelServer) -> Place:
    """A workflow whose prompts stand in files, which refer to a task and a parameter."""
    place = Place(tmp_git_repo, model_server)
    place.write(FILES)
    (tmp_git_repo / "prompts").mkdir()
    (tmp_git_repo / "prompts" / "ask.md").write_text("Review ${{ tasks.draft.output.stdout }}, not $${{ this }}.\n")
    (tmp_git_repo / "prompts" / "system.md").write_text("You know ${{ params.topic }}.\n")
    return place


def test_prompts_in_files_may_refer_and_the_body_is_what_was_written(prompts: Place) -> None:
    assert prompts.agentos("check", "flow").code == 0
    done = prompts.agentos("run", "flow", "--id", "r")
    assert done.code == 0, done.err
    [request] = prompts.server.requests
    assert [message["content"] for message in request.json["messages"]] == [
        "You know tests.\n",
        "Review drafted, not ${{ this }}.\n",
    ]
    assert request.json["reasoning_effort"] == "high"
    assert request.json["top_k"] == 20  # a number stays one
    assert request.json["chat_template_kwargs"] == {"enable_thinking": False, "about": "a tests"}
    assert request.json["stream"] is True


def test_what_a_prompt_file_says_is_part_of_the_task(prompts: Place) -> None:
    assert prompts.agentos("run", "flow", "--id", "r").code == 0
    (prompts.root / "prompts" / "ask.md").write_text("Say ${{ params.topic }}.")
    preview = json.loads(prompts.agentos("resume", "r", "--dry-run", "--json").out)
    verdicts = {row["id"]: row["verdict"] for row in preview["tasks"]}
    assert verdicts == {"draft": "reuse", "ask": "reuse, changed"}
    assert prompts.agentos("resume", "r", "--rerun", "changed").code == 0
    assert [one.json["messages"][1]["content"] for one in prompts.server.requests][1:] == ["Say tests."]
    (prompts.root / "prompts" / "ask.md").unlink()
    gone = prompts.agentos("resume", "r", "--rerun", "ask")
    assert gone.code == 2
    assert "'prompts/ask.md' cannot be read: No such file" in gone.err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff", "is no UTF-8"),
        (b"a\0b", "holds NUL"),
        (b" \n", "is empty"),
        (b"${{ tasks.nobody.output }}", "there is no task 'nobody'"),
        (b"${{ tasks.draft.outptu }}", "a task has output"),
    ],
)
def test_a_prompt_file_that_is_no_good_is_told_before_anything_runs(
    prompts: Place, content: bytes | None, why: str
) -> None:
    file = prompts.root / "prompts" / "ask.md"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    for command in (("check", "flow"), ("run", "flow", "--id", "r")):
        done = prompts.agentos(*command)
        assert done.code == 2
        assert why in done.out + done.err
    assert prompts.server.requests == []


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("prompt_file: ../outside.md", "leads out of"),
        ("prompt_file: out.md", "leads out of"),
        ("prompt_file: /etc/hostname", "leads out of"),
        ('prompt_file: "${{ params.topic }}.md"', "its name can hold no reference"),
        ("prompt_file: prompts", "cannot be read: Is a directory"),
        ("{prompt_file: prompts/ask.md, prompt: x}", "prompt_file and prompt: give one of them"),
        ("{prompt_file: 7}", "Expected `str`"),
    ],
)
def test_a_prompt_file_is_a_file_of_the_repository(prompts: Place, setting: str, why: str) -> None:
    (prompts.root.parent / "outside.md").write_text("secret")
    (prompts.root / "out.md").symlink_to("../outside.md")
    prompts.write(f"params: {{topic: t}}\ntasks:\n  ask: {{llm: m1, {setting.strip('{}')}}}\n  draft: {{run: ls}}\n")
    done = prompts.agentos("check", "flow")
    assert (done.code, why in done.out + done.err) == (2, True), done.out + done.err
    assert "secret" not in done.out + done.err
    assert "flow.yaml:3" in done.out + done.err


@pytest.mark.parametrize("says_where", ["task", "settings"])
def test_a_server_on_this_machine_needs_no_key_and_no_proxy(
    tmp_git_repo: Path, model_server: ModelServer, says_where: str
) -> None:
    """As ollama and vllm are asked: nothing is set, and what the environment says of proxies is not for them."""
    place = Place(tmp_git_repo, model_server)
    own = f", base_url: '{model_server.base_url}'" if says_where == "task" else ""
    settings = f"[llm]\nbase_url = '{model_server.base_url}'\n" if says_where == "settings" else ""
    place.write(f"tasks:\n  ask: {{llm: 'qwen3:8b', prompt: Hello{own}}}\n", settings)
    nowhere = "http://127.0.0.1:9"
    env = {"OPENAI_BASE_URL": "", "OPENAI_API_KEY": "sk-for-somebody-else", "HTTP_PROXY": nowhere, "ALL_PROXY": nowhere}
    done = place.agentos("run", "flow", "--id", "r", **env)
    assert done.code == 0, done.err
    [request] = model_server.requests
    assert "authorization" not in request.headers
    assert request.json["model"] == "qwen3:8b"

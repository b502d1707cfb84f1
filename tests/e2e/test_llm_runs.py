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

"""Plans as SVG: what is folded and counted, that no text can be markup, and how much it may cost."""

from __future__ import annotations

import random
import re
import time
from typing import Any
from xml.etree import ElementTree

import pytest

from agentos.dag.define.workflow import Workflow
from agentos.dag.plan.candidates import contest_tasks
from agentos.dag.plan.growth import item_tasks, round_tasks, with_tasks
from agentos.dag.plan.plan import Plan, compile_plan
from agentos.ids import TaskId
from agentos.render.plan_columns import MOST_SHOWN
from agentos.render.plan_svg import plan_svg
from tests.unit.dag.support import plan_of

T = TaskId
NAMESPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = ['"><script>alert(1)</script>', "a' onload='x", "</text></svg>", "]]>", "&lt;b&gt;", "\u202eevil", "\x1b[2J",
           "你好" * 30, "x" * 200, "a\nb", "&amp;"]  # fmt: skip


def nodes(drawn: str) -> dict[str, str]:
    """By what is said of each node, its classes."""
    root = ElementTree.fromstring(drawn)
    return {
        title.text or "": one.get("class", "")
        for one in root.iter()
        for title in one.findall(f"{NAMESPACE}title")
        if one.get("class", "").startswith("n")
    }


def texts(drawn: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(drawn).iter(f"{NAMESPACE}text")]


def link(task: str) -> str:
    return f"/run?task={task}"


def unfold(task: str) -> str:
    return f"/run?unfold={task}"


def fan_out(number: int) -> Plan:
    flow = Workflow("flow")
    flow.add("before", "shell", run="true")
    flow.add("each", "shell", run="true", needs=["before"], for_each=list(range(number)))
    flow.add("after", "shell", run="true", needs=["each"])
    plan = compile_plan(flow)
    return with_tasks(plan, item_tasks(plan, T("each"), list(range(number))), origin="for_each", parent=T("each"))


def edges(drawn: str) -> int:
    return sum(path.get("d", "").count("M") for path in ElementTree.fromstring(drawn).iter(f"{NAMESPACE}path"))


def test_each_task_is_a_box_with_its_mark_and_each_need_a_line() -> None:
    plan = plan_of({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]})
    drawn = plan_svg(plan, {"a": "complete", "b": "failed", "c": "running"})
    assert nodes(drawn) == {
        "a: complete, python": "n s-complete",
        "b: failed, python": "n s-failed",
        "c: running, python": "n s-running",
        "d: pending, python": "n s-pending",
    }
    assert [text for text in texts(drawn) if text in "✓✗▶·"] == ["✓", "✗", "▶", "·"]
    assert edges(drawn) == 4
    assert [text for text in texts(drawn) if text.startswith("layer")] == ["layer 1", "layer 2", "layer 3"]


def test_of_a_workflow_nothing_is_told_about_how_it_stands() -> None:
    drawn = plan_svg(plan_of({"a": [], "b": ["a"]}), {})
    assert nodes(drawn) == {"a: python": "n", "b: python": "n"}
    assert "·" not in drawn


def test_a_plan_without_tasks_is_a_picture_without_boxes() -> None:
    assert nodes(plan_svg(plan_of({}), {})) == {}


def test_a_fan_out_is_one_node_with_counts() -> None:
    statuses = {f"each[{number}]": "complete" for number in range(12)}
    statuses |= {"before": "complete", "each": "running", "each[12]": "failed"}
    drawn = plan_svg(fan_out(40), statuses, link=link, unfold=unfold)
    assert "each: running, shell, for each, 12 of 40 done, 1 failed" in nodes(drawn)
    assert len(nodes(drawn)) == 3
    assert 'href="/run?unfold=each"' in drawn


def test_an_unfolded_fan_out_shows_first_what_failed_or_runs() -> None:
    statuses = {f"each[{number}]": "complete" for number in range(38)}
    statuses |= {"before": "complete", "each": "running", "each[38]": "failed", "each[39]": "running"}
    drawn = plan_svg(fan_out(40), statuses, link=link, unfold=unfold, unfolded=["each"])
    found = nodes(drawn)
    assert {"each[38]: failed, shell", "each[39]: running, shell"} <= found.keys()
    assert len(found) == MOST_SHOWN + 3  # what comes before and after, and what stands for the rest
    assert "… 29 more: 29 complete" in found
    assert 'href="/run?unfold=layer%202"' in plan_svg(
        fan_out(40), statuses, unfold=lambda one: unfold(one.replace(" ", "%20")), unfolded=["each"]
    )
    assert edges(drawn) == 2
    whole = nodes(plan_svg(fan_out(40), statuses, unfold=unfold, unfolded=["each", "layer 2"]))
    assert len([title for title in whole if title.startswith("each[")]) == 40


def test_a_layer_that_is_a_little_wide_is_drawn_whole() -> None:
    """Nobody folds a single task."""
    for number in (MOST_SHOWN, MOST_SHOWN + 1):
        assert len(nodes(plan_svg(plan_of({f"t{n}": [] for n in range(number)}), {}))) == number
    assert len(nodes(plan_svg(plan_of({f"t{n}": [] for n in range(MOST_SHOWN + 2)}), {}))) == MOST_SHOWN + 1


def test_what_is_folded_of_a_layer_is_counted_by_status() -> None:
    plan = plan_of({f"t{number:04}": [] for number in range(1000)})
    statuses = {f"t{number:04}": "complete" if number < 970 else "running" for number in range(1000)}
    rest = next(title for title in nodes(plan_svg(plan, statuses)) if title.startswith("…"))
    found = re.fullmatch(r"… (\d+) more: (\d+) complete, (\d+) running", rest)
    assert found is not None
    assert int(found[1]) == int(found[2]) + int(found[3])
    assert int(found[2]) == 970


def test_the_node_that_holds_the_task_looked_at_is_marked() -> None:
    found = nodes(plan_svg(fan_out(40), {"each": "running"}, current="each[30]"))
    assert [class_ for class_ in found.values() if "current" in class_] == ["n current s-running"]


def test_rounds_are_one_node_until_they_are_unfolded() -> None:
    flow = Workflow("flow")
    flow.add("draft", "shell", run="true")
    flow.add("review", "shell", run="true", needs=["draft"])
    flow.add("loop", repeat={"tasks": ["draft", "review"], "until": "true", "max": 3})
    plan = compile_plan(flow)
    plan = with_tasks(plan, round_tasks(plan, T("loop"), 2), origin="repeat")
    statuses = {"draft": "complete", "review": "complete", "draft@2": "running"}
    found = nodes(plan_svg(plan, statuses))
    assert "draft: running, shell, round 2" in found
    assert len(found) == 3
    assert "draft@2: running, shell" in nodes(plan_svg(plan, statuses, unfolded=["draft"]))


def test_candidates_are_folded_into_their_task() -> None:
    flow = Workflow("flow")
    flow.add("fix", "agent", agent="claude", prompt="go", candidates=[{"agent": "claude"}, {"agent": "codex"}],
             judge="human")  # fmt: skip
    plan = compile_plan(flow)
    plan = with_tasks(plan, contest_tasks(plan.tasks[T("fix")].definition), origin="for_each", parent=T("fix"))
    (told,) = nodes(plan_svg(plan, {"fix": "running", "fix[claude]": "complete"}))
    assert told == "fix: running, agent, 2 candidates, 1 of 3 done"
    assert len(nodes(plan_svg(plan, {}, unfolded=["fix"]))) == 4


def test_of_a_long_plan_the_ends_are_drawn_and_where_it_is_at_work() -> None:
    plan = plan_of({f"t{number}": [f"t{number - 1}"] if number else [] for number in range(1000)})
    statuses = {f"t{number}": "complete" for number in range(600)} | {"t600": "running"}
    found = nodes(plan_svg(plan, statuses, unfold=unfold))
    assert {"t0: complete, python", "t600: running, python", "t999: pending, python"} <= found.keys()
    assert len(found) < 30
    assert len(nodes(plan_svg(plan, statuses, unfolded=["layers"]))) > 150
    assert nodes(plan_svg(plan, statuses, current="t300"))["t300: complete, python"] == "n current s-complete"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_id_can_be_markup_or_turn_the_text_around(hostile: str) -> None:
    flow = Workflow(hostile)
    flow.add(hostile.replace("\x1b", "").replace("\n", "") or "x", "shell", run="true")
    drawn = plan_svg(compile_plan(flow), {}, link=lambda _: '/?"><script>', current=hostile, standalone=True)
    root = ElementTree.fromstring(drawn)  # well-formed, with nothing in it but what we draw
    assert {one.tag.removeprefix(NAMESPACE) for one in root.iter()} <= {
        "svg", "style", "rect", "text", "g", "a", "title", "path",
    }  # fmt: skip
    assert not re.search("[\u202e\x1b]", drawn)
    assert all(len(text) <= 60 for text in texts(drawn))


def test_it_is_an_image_where_nothing_leads_anywhere() -> None:
    plan = plan_of({"a": []})
    assert 'role="img" aria-label="flow: 1 task in 1 layer"' in plan_svg(plan, {})
    assert 'role="group"' in plan_svg(plan, {}, link=link)  # what is in an image nobody can reach


def test_nothing_needs_a_style_of_its_own_but_a_file() -> None:
    plan = fan_out(30)
    drawn = plan_svg(plan, {"each": "running"}, link=link, unfold=unfold, unfolded=["each"], current="each")
    assert "style" not in drawn
    assert " current s-running" in drawn
    assert "<style>" in plan_svg(plan, {}, standalone=True)


def shapes() -> dict[str, dict[str, list[str]]]:
    chance = random.Random(7)
    return {
        "wide": {"a": []} | {f"task {n}": ["a"] for n in range(998)} | {"z": [f"task {n}" for n in range(998)]},
        "long": {f"t{n}": [f"t{n - 1}"] if n else [] for n in range(1000)},
        "grid": {
            f"t{layer}-{n}": [f"t{layer - 1}-{chance.randrange(100)}" for _ in range(3)] if layer else []
            for layer in range(10)
            for n in range(100)
        },
    }  # fmt: skip


@pytest.mark.parametrize("shape", ["wide", "long", "grid"])
def test_a_thousand_tasks_are_small_quick_and_always_the_same(shape: str) -> None:
    needs = {one: list(dict.fromkeys(above)) for one, above in shapes()[shape].items()}
    plan = plan_of(needs)
    statuses = dict.fromkeys(list(needs)[:700], "complete")
    how: dict[str, Any] = {
        "link": lambda one: f"/run/abcdef123456/01a1f09f-07c2-7771-9531-78fd0f0b41c2?task={one}#task",
        "unfold": lambda one: f"/run/abcdef123456/01a1f09f-07c2-7771-9531-78fd0f0b41c2?unfold={one}#graph",
    }
    drawn = plan_svg(plan, statuses, **how)
    assert len(drawn) < 16_000
    took = []
    for _ in range(5):
        began = time.process_time()
        assert plan_svg(plan, statuses, **how) == drawn
        took.append(time.process_time() - began)
    assert min(took) < 0.015 * 4  # of a machine that is busy otherwise

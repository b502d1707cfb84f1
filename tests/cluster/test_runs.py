"""Runs on a real cluster: equal to a run beside the driver, seen live, ended when they are told to, put off where there
is nobody."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from agentos import client
from agentos.machine import events as ev
from tests.cluster.conftest import Scene, is_gone
from tests.cluster.dask_cluster import wait_until


def tasks(runner: str) -> dict[str, dict[str, object]]:
    return {
        "a": {"python": "jobs:double", "inputs": {"x": 4}, "runner": runner},
        "b": {"run": "echo $N", "env": {"N": "${{ tasks.a.output }}"}, "effects": "none", "runner": runner},
        "c": {
            "python": "jobs:add",
            "inputs": {"left": "${{ tasks.a.output }}", "right": 1},
            "effects": "external",
            "idempotent": True,
            "runner": runner,
        },
        "d": {"needs": ["a"], "for_each": [1, 2, 3], "python": "jobs:double", "inputs": {"x": "${{ item }}"}}
        | {"runner": runner},
        "e": {"python": "jobs:boom", "continue_on_error": True, "runner": runner},
        "f": {"python": "jobs:broad", "inputs": {"x": 1}, "runner": runner},
        "g": {"python": "jobs:in_steps", "runner": runner},
    }


def test_a_run_on_a_cluster_comes_to_the_same_as_one_beside_the_driver(scene: Scene) -> None:
    scene.run(scene.flow(tasks("local"), "here"), id="here")
    scene.run(scene.flow(tasks("dask"), "there"), id="there")
    here, there = scene.state("here"), scene.state("there")
    assert here == there
    assert here["status"] == "complete"
    placed = [event.task_id for event in scene.events("there") if isinstance(event, ev.TaskPlaced)]
    assert sorted(set(placed)) == ["a", "b", "c", "d[0]", "d[1]", "d[2]", "e", "f", "g"]
    failed = next(task for task in scene.shown("there")["tasks"] if task["id"] == "e")
    assert failed["error"]["type"] == "ZeroDivisionError"
    assert "return 1 // 0" in failed["error"]["traceback"]
    assert "agentos/tasks" not in failed["error"]["traceback"]


@pytest.mark.full
def test_a_task_there_finds_its_trace_context(scene: Scene) -> None:
    tasks = {"a": {"run": "echo $TRACEPARENT", "effects": "none", "runner": "dask"}}
    scene.run(scene.flow(tasks), id="run")
    span = next(one for one in client.trace("run", scene.root) if one.kind == "attempt")
    seen = scene.shown("run")["tasks"][0]["output"]["stdout"].strip()
    assert seen == f"00-{span.trace_id}-{span.span_id}-01"


@pytest.mark.full
def test_what_a_task_prints_there_is_seen_and_logged_while_it_runs(scene: Scene) -> None:
    task = {"python": "jobs:talk", "inputs": {"hold": str(scene.hold)}, "runner": "dask"}
    driver = scene.drive("run", scene.flow({"a": task}), "--id", "run")
    log = scene.root / ".agentos/logs"
    wait_until(lambda: any("one line" in file.read_text() for file in log.rglob("*") if file.is_file()))
    assert not driver.ended
    scene.go()
    driver.wait()
    said = "".join(file.read_text() for file in log.rglob("*") if file.is_file())
    assert "to stderr" in said


@pytest.mark.full
def test_an_abort_ends_what_is_at_work_there(scene: Scene) -> None:
    driver = scene.drive("run", scene.flow({"a": scene.waits(effects="external")}), "--id", "run")
    pid = scene.wait_for_start()
    scene.drive("abort", "run").wait(0)
    driver.wait(4)
    assert is_gone(pid)
    assert scene.status() == "aborted"


def test_a_dead_worker_uses_up_no_retry(scene: Scene) -> None:
    """Dask's own `allowed-failures` is 3 here, as everywhere: it would repeat it by itself."""
    flow = scene.flow({"a": scene.waits(retries=0)})
    driver = scene.drive("run", flow, "--id", "run")
    pid = scene.wait_for_start()
    name = scene.worker_of(pid)
    scene.cluster.kill(name)
    wait_until(lambda: is_gone(pid))
    scene.cluster.begin_worker(name)
    second = scene.wait_for_start(2)
    scene.go()
    driver.wait()
    scene.cluster.wait_for_worker(name)
    assert second != pid
    assert len(scene.noted("start")) == 2
    assert scene.noted("end") == ["end a"]
    retries = [event for event in scene.events() if isinstance(event, ev.TaskRetry) and not event.put_off]
    assert retries == []


@pytest.mark.full
def test_a_dead_driver_leaves_nothing_at_work_and_a_resume_runs_it_once(scene: Scene) -> None:
    driver = scene.drive("run", scene.flow({"a": scene.waits()}), "--id", "run")
    pid = scene.wait_for_start()
    driver.kill()
    wait_until(lambda: is_gone(pid))  # nobody renews it, and nobody has asked for it
    assert scene.noted("end") == []
    scene.go()
    scene.resume()
    assert scene.noted("end") == ["end a"]


@pytest.mark.full
def test_a_resume_ends_what_a_dead_driver_left_at_work(scene: Scene) -> None:
    flow = scene.flow({"a": scene.waits(effects="external", idempotent=True)})
    driver = scene.drive("run", flow, "--id", "run")
    pid = scene.wait_for_start()
    driver.kill()
    resumed = scene.drive("resume", "run")
    wait_until(lambda: is_gone(pid))
    second = scene.wait_for_start(2)
    assert second != pid
    scene.go()
    resumed.wait()
    assert scene.noted("end") == ["end a"]


@pytest.mark.full
def test_what_may_have_happened_is_asked_about(scene: Scene) -> None:
    driver = scene.drive("run", scene.flow({"a": scene.waits(effects="external")}), "--id", "run")
    pid = scene.wait_for_start()
    driver.kill()
    scene.resume(code=3)
    assert is_gone(pid)
    assert [event.kind for event in scene.events() if isinstance(event, ev.DecisionRequired)] == ["ask"]


@pytest.mark.full
def test_a_lost_effect_is_asked_about_only_once_it_cannot_be_at_work(scene: Scene) -> None:
    driver = scene.drive("run", scene.flow({"a": scene.waits(effects="external")}), "--id", "run")
    pid = scene.wait_for_start()
    name = scene.worker_of(pid)
    scene.cluster.signal(name, signal.SIGSTOP)  # it hears nothing, and looks after nothing
    driver.wait(3)
    assert is_gone(pid)
    scene.cluster.kill(name)
    scene.cluster.start_worker(name)


@pytest.mark.full
def test_without_workers_the_run_is_put_off_and_goes_on_once_there_are_some(own_scene: Scene) -> None:
    flow = own_scene.flow({"a": {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask"}})
    said = own_scene.run(flow, code=75)
    assert "has no workers" in said
    assert "agentos resume" in said
    assert own_scene.status() == "interrupted"
    own_scene.cluster.start_worker("w1")
    own_scene.resume()
    assert own_scene.status() == "complete"


@pytest.mark.full
def test_without_a_worker_that_has_what_is_asked_for_the_run_is_put_off(scene: Scene) -> None:
    task = {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask", "resources": {"GPU": 1}}
    said = scene.run(scene.flow({"a": task}), code=75)
    assert "no worker of the cluster" in said
    assert "GPU 1" in said
    scene.cluster.start_worker("w3", resources='{"GPU": 1}')
    scene.resume()
    scene.cluster.kill("w3")


@pytest.mark.full
def test_when_the_scheduler_dies_the_run_is_put_off_and_goes_on_once_it_is_back(own_scene: Scene) -> None:
    own_scene.cluster.start_worker("w1")
    driver = own_scene.drive("run", own_scene.flow({"a": own_scene.waits(retries=0)}), "--id", "run")
    pid = own_scene.wait_for_start()
    own_scene.cluster.kill("scheduler")
    assert "cannot be reached" in driver.wait(75)
    wait_until(lambda: is_gone(pid))
    own_scene.cluster.kill("w1")
    own_scene.cluster.start_scheduler()
    own_scene.cluster.start_worker("w1")
    own_scene.go()
    own_scene.resume()
    assert own_scene.noted("end") == ["end a"]


@pytest.mark.full
def test_a_worker_without_agentos_is_told_of_in_words(own_scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "none" / "agentos").mkdir(parents=True)
    (tmp_path / "none" / "agentos" / "__init__.py").write_text("")
    own_scene.cluster.start_worker("w1", env={"PYTHONPATH": str(tmp_path / "none")})
    task = {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask"}
    said = own_scene.run(own_scene.flow({"a": task}), code=1)
    assert "it has no AgentOS" in own_scene.shown()["tasks"][0]["error"]["text"], said


@pytest.mark.full
def test_a_fan_out_over_thousands_spreads_and_is_never_handed_over_at_once(scene: Scene) -> None:
    count = int(os.environ.get("ITEMS", "2000"))
    flow = scene.flow(
        {
            "list": {"run": ["python3", "-c", f"print(list(range({count})))"], "output": "json", "effects": "none"},
            "each": {
                "for_each": "${{ tasks.list.output }}",
                "python": "jobs:double",
                "inputs": {"x": "${{ item }}"},
                "runner": "dask",
            },
        },
        max_concurrency=50,
    )
    scene.drive("run", flow, "--id", "run").wait(0, 300)
    at_once = most = 0
    for event in scene.events():
        at_once += isinstance(event, ev.TaskPlaced)
        at_once -= isinstance(event, ev.TaskComplete) and event.task_id.startswith("each[")
        most = max(most, at_once)
    assert most <= 50
    each = next(task for task in scene.shown()["tasks"] if task["id"] == "each")
    assert each["output"] == [2 * number for number in range(count)]


@pytest.mark.full
def test_a_scheduler_that_came_with_the_repository_is_not_used_unaccepted(scene: Scene) -> None:
    with (scene.root / "agentos.toml").open("a") as settings:
        settings.write(f'[dask]\nscheduler = "{scene.cluster.address}"\n')
    flow = scene.flow({"a": {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask"}})
    said = scene.run(flow, code=1, AGENTOS_DASK_SCHEDULER="", AGENTOS_DASK="")
    assert "you have not accepted that" in said
    assert "agentos trust" in said


@pytest.mark.full
def test_a_scheduler_is_reached_over_a_network_with_tls_alone(scene: Scene) -> None:
    flow = scene.flow({"a": {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask"}})
    said = scene.run(flow, code=1, AGENTOS_DASK_SCHEDULER="tcp://203.0.113.7:8786")
    assert "is not encrypted" in said


def test_files_on_a_cluster_are_refused_by_check(scene: Scene) -> None:
    flow = scene.flow({"a": {"run": "true", "runner": "dask"}})
    said = scene.drive("check", flow).wait(2)
    assert "a task that changes files runs where the worktree is" in said


def test_secrets_go_by_name(scene: Scene) -> None:
    task = {"run": "echo $T", "env": {"T": "${{ secrets.DEPLOY_TOKEN }}"}, "effects": "none", "runner": "dask"}
    flow = scene.flow({"a": task}, secrets=["DEPLOY_TOKEN"])
    said = scene.run(flow, code=1, DEPLOY_TOKEN="the-drivers-own-value")
    assert "DEPLOY_TOKEN is not set on the worker" in said
    assert "the-drivers-own-value" not in json.dumps(scene.shown())


@pytest.mark.full
def test_a_scheduler_without_tls_files_is_told_of_in_words(scene: Scene) -> None:
    flow = scene.flow({"a": {"python": "jobs:double", "inputs": {"x": 1}, "runner": "dask"}})
    said = scene.run(flow, code=1, DASK_DISTRIBUTED__COMM__TLS__CA_FILE="/nowhere/ca.pem")
    assert "the TLS files of the cluster cannot be read" in said

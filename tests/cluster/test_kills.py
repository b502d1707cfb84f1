"""Whatever is killed, and whenever: the run comes to what an undisturbed one comes to, nothing that finished is done
twice, and nothing is left at work."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from agentos.machine import events as ev
from tests.cluster.conftest import Driver, Scene, is_gone
from tests.cluster.dask_cluster import DaskCluster, wait_until
from tests.marks import only_in_matrix, quick_first

pytestmark = only_in_matrix

EFFECTS: dict[str, dict[str, Any]] = {
    "none": {},
    "external": {"effects": "external", "idempotent": True},
}
WORKERS = ("w1", "w2")


def flow_of(scene: Scene, effects: str) -> str:
    """`a` ends at once; `b` begins and waits for leave; `c` comes after both."""
    note = {"path": str(scene.notes), "hold": ""}
    settings = {"runner": "dask", "retries": 0, **EFFECTS[effects]}
    tasks = {
        "a": {"python": "jobs:work_on", "inputs": {**note, "name": "a"}, **settings},
        "b": {"needs": ["a"], **scene.waits("b", retries=0, **EFFECTS[effects])},
        "c": {"needs": ["b"], "python": "jobs:work_on", "inputs": {**note, "name": "c"}, **settings},
    }
    return scene.flow(tasks)


def drive_to_its_end(scene: Scene, driver: Driver) -> None:
    """Let it go on until the run is complete, resuming it as often as it is put off."""
    scene.go()
    for _ in range(6):
        driver.join()
        if scene.status() == "complete":
            return
        revive(scene)
        driver = scene.drive("resume", "run")
    raise AssertionError(f"the run is {scene.status()}")


def revive(scene: Scene) -> None:
    for name in WORKERS:
        if name not in scene.cluster.alive:
            scene.cluster.start_worker(name)


def check(scene: Scene) -> None:
    shown = scene.shown()
    assert [(task["id"], task["output"]) for task in shown["tasks"]] == [("a", "a"), ("b", "b"), ("c", "c")]
    completed = [event.task_id for event in scene.events() if isinstance(event, ev.TaskComplete)]
    assert sorted(completed) == ["a", "b", "c"], "each is finished once"
    first_end: dict[str, int] = {}
    for number, event in enumerate(scene.events()):
        if isinstance(event, ev.TaskComplete):
            first_end[event.task_id] = number
        elif isinstance(event, ev.TaskStart):
            assert event.task_id not in first_end, "nothing that finished begins again"
    assert [event for event in scene.events() if isinstance(event, ev.TaskRetry) and not event.put_off] == []
    assert [event for event in scene.events() if isinstance(event, ev.TaskError)] == []
    pids = [int(line.split()[-1]) for line in scene.noted("start")]
    began, ended = len(scene.noted("start")), len(scene.noted("end"))
    if began > ended:  # those that were killed in the middle
        wait_until(lambda: sum(map(is_gone, pids)) >= began - ended)


@pytest.mark.parametrize("effects", quick_first(EFFECTS, 0))
@pytest.mark.parametrize(
    "at", ["cluster.placed", "cluster.placed:2", "attempt.before:2", "attempt.after", "commit.after:3"]
)
def test_the_driver_dies(scene: Scene, effects: str, at: str) -> None:
    scene.go()
    scene.drive("run", flow_of(scene, effects), "--id", "run", AGENTOS_CRASH_AT=at).wait(-signal.SIGKILL)
    drive_to_its_end(scene, scene.drive("resume", "run"))
    check(scene)


@pytest.mark.parametrize("effects", quick_first(EFFECTS, 0))
@pytest.mark.parametrize("at", ["cluster.begun", "cluster.ended", "cluster.begun:2", "cluster.ended:2"])
def test_a_worker_dies(own_scene: Scene, effects: str, at: str) -> None:
    own_scene.go()
    own_scene.cluster.start_worker("w1", env={"AGENTOS_CRASH_AT": at})
    driver = own_scene.drive("run", flow_of(own_scene, effects), "--id", "run")
    wait_until(lambda: "w1" not in own_scene.cluster.alive)
    own_scene.cluster.start_worker("w1")
    drive_to_its_end(own_scene, driver)
    check(own_scene)


@pytest.mark.parametrize("effects", quick_first(EFFECTS, 0))
def test_the_worker_at_work_dies_and_then_the_driver(scene: Scene, effects: str) -> None:
    driver = scene.drive("run", flow_of(scene, effects), "--id", "run")
    wait_until(lambda: scene.noted("start b"))
    name = scene.worker_of(int(scene.noted("start b")[0].split()[-1]))
    scene.cluster.kill(name)
    driver.kill()
    drive_to_its_end(scene, scene.drive("resume", "run"))
    scene.cluster.start_worker(name)
    check(scene)


@pytest.mark.parametrize("effects", quick_first(EFFECTS, 0))
@pytest.mark.parametrize("when", ["before it begins", "at work", "between two tasks"])
def test_the_scheduler_dies(own_scene: Scene, effects: str, when: str) -> None:
    cluster = own_scene.cluster
    cluster.start_workers(*WORKERS)
    if when == "before it begins":
        driver = own_scene.drive("run", flow_of(own_scene, effects), "--id", "run")
        cluster.kill("scheduler")
    else:
        driver = own_scene.drive("run", flow_of(own_scene, effects), "--id", "run")
        wait_until(lambda: own_scene.noted("start b" if when == "at work" else "end a"))
        cluster.kill("scheduler")
    for name in WORKERS:
        cluster.kill(name)
    cluster.start_scheduler()
    cluster.start_workers(*WORKERS)
    drive_to_its_end(own_scene, driver)
    check(own_scene)


@pytest.mark.full
def test_all_of_it_dies_at_once(own_scene: Scene) -> None:
    cluster: DaskCluster = own_scene.cluster
    cluster.start_workers(*WORKERS)
    driver = own_scene.drive("run", flow_of(own_scene, "external"), "--id", "run")
    wait_until(lambda: own_scene.noted("start b"))
    driver.kill()
    for name in ("scheduler", *WORKERS):
        cluster.kill(name)
    cluster.start_scheduler()
    cluster.start_workers(*WORKERS)
    drive_to_its_end(own_scene, own_scene.drive("resume", "run"))
    check(own_scene)

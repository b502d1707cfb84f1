"""Scheduler, workers and driver in network namespaces of their own, and the network between them cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agentos.machine import events as ev
from tests.cluster.conftest import Scene, is_gone
from tests.cluster.dask_cluster import DaskCluster, wait_until
from tests.cluster.networks import Network, network, why_not
from tests.cluster.test_kills import check, drive_to_its_end, flow_of
from tests.marks import only_in_matrix

pytestmark = [pytest.mark.full, only_in_matrix, pytest.mark.skipif(bool(why_not()), reason=why_not() or "never")]

SOON = {
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "6s",
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "8s",
}
"""Dask's own patience, for a test."""


class Far(NamedTuple):
    scene: Scene
    network: Network


@pytest.fixture
def far(tmp_path: Path, make_scene: Callable[[DaskCluster], Scene]) -> Iterator[Far]:
    with (
        network("scheduler", "w1", "w2", "driver") as made,
        DaskCluster(tmp_path / "cluster", made.places, SOON) as cluster,
    ):
        cluster.start_scheduler()
        cluster.start_workers("w1", "w2")
        scene = make_scene(cluster)
        scene.inside = made.places["driver"][0]
        scene.env["AGENTOS_DASK"] = '{"patience_s": 8}'
        yield Far(scene, made)
        scene.close()


def start_of_b(scene: Scene) -> int:
    wait_until(lambda: scene.noted("start b"))
    return int(scene.noted("start b")[0].split()[-1])


@pytest.mark.parametrize("effects", ["none", "external"])
def test_a_worker_that_is_cut_off_ends_its_work_before_it_is_begun_elsewhere(far: Far, effects: str) -> None:
    scene = far.scene
    driver = scene.drive("run", flow_of(scene, effects), "--id", "run")
    pid = start_of_b(scene)
    cut = scene.worker_of(pid)
    far.network.cut(cut)
    wait_until(lambda: len(scene.noted("start b")) > 1)
    if effects == "external":
        assert is_gone(pid), "nobody could ask it, and it was sure to have ended"
    wait_until(lambda: is_gone(pid))
    far.network.heal(cut)
    drive_to_its_end(scene, driver)
    check(scene)
    assert scene.noted("end b") == ["end b"]


@pytest.mark.parametrize("who", ["driver", "scheduler"])
@pytest.mark.parametrize("effects", ["none", "external"])
def test_what_cannot_be_renewed_ends_and_the_run_goes_on_once_the_network_does(
    far: Far, effects: str, who: str
) -> None:
    scene = far.scene
    driver = scene.drive("run", flow_of(scene, effects), "--id", "run")
    pid = start_of_b(scene)
    far.network.cut(who)
    wait_until(lambda: is_gone(pid))
    assert scene.noted("end b") == []
    far.network.heal(who)
    drive_to_its_end(scene, driver)
    check(scene)
    assert scene.noted("end b") == ["end b"]


@pytest.mark.parametrize("when", ["before it begins", "between two tasks"])
@pytest.mark.parametrize("who", ["worker", "driver", "scheduler"])
@pytest.mark.parametrize("effects", ["none", "external"])
def test_a_cut_while_nothing_is_at_work_holds_the_run_up_and_no_more(
    far: Far, effects: str, who: str, when: str
) -> None:
    scene, cut = far.scene, "w1" if who == "worker" else who  # where `a` was, or not: by lot
    if when == "before it begins":
        far.network.cut(cut)
    driver = scene.drive("run", flow_of(scene, effects), "--id", "run")
    if when == "between two tasks":
        wait_until(lambda: scene.noted("end a"))
        far.network.cut(cut)
    scene.go()
    driver.join()  # it goes on with the other worker, or is put off
    assert who != "worker" or scene.status() == "complete"
    far.network.heal(cut)
    drive_to_its_end(scene, driver)
    check(scene)


def test_a_cut_shorter_than_a_lease_is_not_noticed(far: Far) -> None:
    scene = far.scene
    driver = scene.drive("run", flow_of(scene, "external"), "--id", "run")
    pid = start_of_b(scene)
    far.network.cut("driver")
    far.network.heal("driver")
    drive_to_its_end(scene, driver)
    assert scene.noted("start b") == [f"start b {pid}"]
    assert not [event for event in scene.events() if isinstance(event, ev.ResumePlanned)]

"""Tasks on a Dask cluster, and the same work given to Dask itself: one cluster, one process, both warm."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from agentos import Workflow, run
from agentos.client.runs import resolve_drive_options
from agentos.machine import events as ev
from agentos.tasks.cluster.local_cluster import local_cluster
from bench.task import START, advance
from bench.work import WARM_UP, Metrics, check, git_repository

WORKERS, THREADS = 2, 2
WINDOW = 200


def item(n: int) -> dict[str, Any]:
    return advance({"n": n})


def cluster(folder: Path, tasks: int, width: int) -> Metrics:
    """Milliseconds a task: a chain of `tasks`, and a fan-out of `width`; ours and bare."""
    root = git_repository(folder / "repo")
    with local_cluster(WORKERS, THREADS, {}) as local:
        scheduler, ca, cert, key = local.variables.values()
        # Dask has read its own variables already.
        os.environ["AGENTOS_DASK"] = json.dumps({"scheduler": scheduler, "ca": ca, "cert": cert, "key": key})
        bare = _bare(local.scheduler, local.variables, tasks, width)
        ours = {"chain_ms": _chain(root, tasks), "fan_out_ms": _fan_out(root, width)}
    over = {f"over_{name}": ours[name] - bare[f"bare_{name}"] for name in ours}
    return {**ours, **bare, **over}


def _bare(scheduler: str, variables: Any, tasks: int, width: int) -> Metrics:
    from distributed import Client, Security

    files = list(variables.values())[1:]
    security = Security(tls_ca_file=files[0], tls_client_cert=files[1], tls_client_key=files[2])
    with Client(scheduler, security=security, set_as_default=False) as client:
        client.gather(client.map(item, range(100), pure=False))
        taken, value = [], START
        for _ in range(WARM_UP + tasks):
            began = perf_counter()
            value = client.submit(advance, value, pure=False).result()
            taken.append(perf_counter() - began)
        check("the bare chain", value["n"], WARM_UP + tasks)
        began = perf_counter()
        found = client.gather(client.map(item, range(width), pure=False))
        fan_out = perf_counter() - began
        check("the bare fan-out", len(found), width)
    return {
        "bare_chain_ms": statistics.fmean(taken[WARM_UP:]) * 1000,
        "bare_fan_out_ms": fan_out / width * 1000,
    }


def _chain(root: Path, tasks: int) -> float:
    flow = Workflow("chain", schedule="ready")
    flow.add("t0", advance, inputs={"previous": START}, runner="dask")
    for number in range(1, WARM_UP + tasks + 1):
        flow.add(f"t{number}", advance, inputs={"previous": f"${{{{ tasks.t{number - 1}.output }}}}"}, runner="dask")
    result = run(flow, repo=root, workflow_id="chain")
    check("our chain", result.outputs[f"t{WARM_UP + tasks}"]["n"], WARM_UP + tasks + 1)
    ends = _times(root, "chain", lambda event: isinstance(event, ev.TaskComplete))[WARM_UP:]
    return statistics.fmean(after - before for before, after in pairwise(ends)) * 1000


def _fan_out(root: Path, width: int) -> float:
    flow = Workflow("wide", max_concurrency=WINDOW)
    flow.add("warm", item, for_each=list(range(100)), inputs={"n": "${{ item }}"}, runner="dask")
    flow.add("wide", item, needs=["warm"], for_each=list(range(width)), inputs={"n": "${{ item }}"}, runner="dask")
    result = run(flow, repo=root, workflow_id="wide")
    check("our fan-out", len(result.outputs["wide"]), width)
    began = _times(root, "wide", lambda event: isinstance(event, ev.PlanChanged) and event.parent == "wide")[0]
    ended = _times(root, "wide", lambda event: isinstance(event, ev.TaskComplete) and event.task_id == "wide")[0]
    return (ended - began) / width * 1000


def _times(root: Path, id: str, which: Callable[[ev.Event], bool]) -> Sequence[float]:
    place, _ = resolve_drive_options(root)
    store = place.open(readonly=True)
    try:
        return [event.at.timestamp() for event in store.read_events(id) if which(event)]  # type: ignore[arg-type]
    finally:
        store.close()

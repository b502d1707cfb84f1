"""`agentos trace`: to a file, to stdout, to a collector; while a run goes, and long after."""

from __future__ import annotations

import json
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from agentos import client
from agentos.client.views import Span
from agentos.exceptions import AgentosError
from tests.telemetry.collector import Collector
from tests.telemetry.conftest import Runs

QUICK = "name: quick\ntasks:\n  one: {run: 'true', effects: none}\n  two: {run: 'true', needs: one, effects: none}\n"
WAITS = """
name: waits
tasks:
  one: {run: 'true', effects: none}
  two: {needs: one, approve: 'Go on?', run: 'true', effects: none}
"""
AT_WORK = "name: slow\ntasks:\n  one: {run: 'true', effects: none}\n  two: {needs: one, run: sleep 60, effects: none}\n"


def write(runs: Runs, text: str) -> None:
    (runs.repo / "flow.yaml").write_text(text)


def spans_of(text: str) -> list[dict[str, Any]]:
    requests = map(json.loads, text.splitlines())
    return [span for one in requests for span in one["resourceSpans"][0]["scopeSpans"][0]["spans"]]


def test_a_file_and_a_pipe_get_the_same_and_so_does_who_asks_again(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    told = json.loads(runs.finish("trace", "--otlp", "spans.jsonl", "--json"))
    file = Path(told["otlp"])
    assert (file, told["workflow_id"]) == (runs.repo / "spans.jsonl", "r1")
    first = file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    runs.finish("trace", "r1", "--otlp", "spans.jsonl")
    assert file.read_text() == first == runs.finish("trace", "r1", "--otlp", "-")
    spans = spans_of(first)
    assert len(spans) == told["spans"] == len(client.trace("r1", runs.repo))
    assert {span["traceId"] for span in spans} == set(told["traces"])


def test_it_needs_no_extra(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    with Collector() as collector:
        program = f"""
import sys
sys.modules["opentelemetry"] = sys.modules["requests"] = sys.modules["google"] = None
sys.argv = ["agentos", "trace", "r1", "--otlp", {collector.url!r}]
from agentos.cli.main import main
main()
"""
        runs.python(program)
        assert {"run quick", "task one"} <= collector.names


def test_headers_for_collectors_go_with_it_and_only_there(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    with Collector() as collector:
        said = runs.finish(
            "trace", "r1", "--otlp", f"{collector.url}/v1/traces", OTEL_EXPORTER_OTLP_HEADERS="x-key=a%20b,x-more=c"
        )
        assert (collector.headers[-1]["x-key"], collector.headers[-1]["x-more"]) == ("a b", "c")
        assert said == ""


def test_a_password_in_the_address_is_sent_as_one_and_shown_to_nobody(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    with Collector() as collector:
        url = collector.url.replace("//", "//ada:ses%40me@")
        told = runs.finish("trace", "r1", "--otlp", f"{url}/v1/traces", "--json")
        assert collector.headers[-1]["authorization"] == "Basic YWRhOnNlc0BtZQ=="
        assert json.loads(told)["otlp"] == f"{collector.url}/v1/traces"
    process = runs.start("-m", "agentos", "trace", "r1", "--otlp", "http://ada:ses%40me@127.0.0.1:1?key=sesame")
    assert ("ses" in process.communicate()[1], process.returncode) == (False, 75)


def test_headers_follow_no_redirection_and_nothing_counts_as_sent_then(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    with Collector("has moved") as collector:
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=sesame"}
        process = runs.start("-m", "agentos", "trace", "r1", "--otlp", collector.url, **headers)
        assert (process.wait(60), "answered with 302" in process.communicate()[1]) == (2, True)
        assert len(collector.headers) == 1


def test_a_header_that_cannot_be_sent_is_told_without_what_it_says(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    for value in ("Bearer%0Asesame", "sesame☃"):
        headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"x-key={value}"}
        process = runs.start("-m", "agentos", "trace", "r1", "--otlp", "http://127.0.0.1:1", **headers)
        said = process.communicate()[1]
        assert (process.returncode, "'x-key' of OTEL_EXPORTER_OTLP_HEADERS" in said, "sesame" in said) == (
            2,
            True,
            False,
        )


def test_a_collector_in_trouble_is_told_as_that_and_later_helps(runs: Runs) -> None:
    write(runs, QUICK)
    runs.finish("run", "flow.yaml", "--id", "r1")
    process = runs.start("-m", "agentos", "trace", "r1", "--otlp", "http://127.0.0.1:1")
    assert (process.wait(60), "cannot be reached" in process.communicate()[1]) == (75, True)
    with Collector("is busy") as collector:
        process = runs.start("-m", "agentos", "trace", "r1", "--otlp", collector.url)
        assert (process.wait(60), "503" in process.communicate()[1]) == (75, True)
    runs.finish("trace", "r1", "--otlp", "http://[", code=2)
    process = runs.start("-m", "agentos", "trace", "r1", "--otlp", "nowhere/spans.jsonl")
    assert ("nowhere is no directory\nMake it" in process.communicate()[1], process.returncode) == (True, 2)
    (runs.repo / "folder").mkdir()
    runs.finish("trace", "r1", "--otlp", "folder", code=2)
    runs.finish("trace", "no-such-run", "--otlp", "-", code=2)
    runs.finish("trace", "r1", "--otlp", "-", "--json", code=2)


def test_while_a_run_goes_what_has_ended_is_told_and_never_changes(runs: Runs) -> None:
    write(runs, AT_WORK)

    process = runs.start("-m", "agentos", "run", "flow.yaml", "--id", "r1")
    try:
        early = list[Span]()
        while "task one" not in {span.name for span in early}:
            assert process.poll() is None, process.communicate()
            with suppress(AgentosError):  # not begun yet
                early = client.trace("r1", runs.repo)
        assert "drive slow" not in {span.name for span in early}
    finally:
        process.kill()
        process.communicate()
    late = client.trace("r1", runs.repo)
    assert late[: len(early)] == early
    assert (late[-1].name, late[-1].error) == ("drive slow", "its driver died")


def test_a_fork_names_the_run_that_it_came_from(runs: Runs) -> None:
    write(runs, WAITS)
    runs.finish("run", "flow.yaml", "--id", "r1", code=3)
    cut = json.loads(runs.finish("checkpoints", "r1", "--json"))[0]["id"]
    runs.finish("fork", cut, "--id", "f1", code=3)
    for name in ("r1", "f1"):
        runs.finish("approve", name, "--reason", "S3CRET")
    parent = next(span for span in client.trace("r1", runs.repo) if span.kind == "run")
    fork = next(span for span in client.trace("f1", runs.repo) if span.kind == "run")
    assert [link.span_id for link in fork.links if link.relation == "forked_from"] == [parent.span_id]


def test_a_secret_that_an_error_tells_is_masked_here_as_well(runs: Runs) -> None:
    write(
        runs,
        "name: leaks\ntasks:\n  one: {run: 'echo $DEPLOY_TOKEN >&2; exit 3', effects: none}\n",
    )
    (runs.repo / "leaks.py").write_text(
        "import os\nfrom agentos import Workflow\nflow = Workflow('leaks')\n"
        "@flow.task\ndef one() -> None:\n    raise ValueError('no ' + os.environ['DEPLOY_TOKEN'])\n"
    )
    runs.finish("run", "leaks.py", "--id", "r1", code=1, DEPLOY_TOKEN="hunter2-hunter2")
    told = runs.finish("trace", "r1", "--otlp", "-")
    assert "ValueError: no " in told
    assert "hunter2" not in told

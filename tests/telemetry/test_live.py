"""Spans while a run goes: that they arrive, whatever dies, and that no collector can hold a run up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Semaphore, Thread

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from agentos.exceptions import TryAgainError
from agentos.workflow.telemetry.exporter import MOST_LATE, Sender
from tests.agents.script import WriteFile
from tests.agents.support import scripted
from tests.models.replies import says
from tests.postgres.server import fresh_url
from tests.telemetry.collector import Collector, value_of
from tests.telemetry.conftest import Runs

ERROR = 2
SMALL = """
from agentos import Workflow, run
flow = Workflow("small")
@flow.task
def one() -> int:
    return 1
"""


def context_of(span: Span) -> str:
    return f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"


def test_a_run_that_is_killed_and_resumed_reaches_the_collector_whole(runs: Runs) -> None:
    """An agent, a fan-out and a gate; the driver is killed while the agent is at work."""
    with Collector() as collector:
        env = collector.env
        at_work = "turn claude"  # that its first turn is over is told while it goes
        with runs.killed_after(lambda: at_work in collector.names, "run", "tidy", "--id", "r1", **env):
            assert {"task plan", "task each", "attempt each[2]", "layer 1"} <= collector.names
            assert "drive tidy" not in collector.names
        collector.wait_for(lambda it: "drive tidy" in it.names)  # though nobody has gone on with it
        (died,) = collector.named("drive tidy")
        assert (died.status.code, died.status.message) == (ERROR, "its driver died")
        assert value_of(collector.named("invoke_agent claude")[0], "agentos.end") == "cut off"

        (runs.repo / ".git" / "go").touch()
        runs.finish("resume", "r1", code=3, **env)
        runs.finish("approve", "r1", code=1, **env)
        told = [json.loads(line) for line in runs.finish("trace", "r1", "--otlp", "-").splitlines()]
        listed = [one for request in told for one in request["resourceSpans"][0]["scopeSpans"][0]["spans"]]
        collector.wait_for(lambda it: len(it.spans) >= len(listed))
        known = collector.spans
        assert {one["spanId"] for one in listed} == known.keys()
        assert len(listed) == len(known)
        runs.finish("trace", "r1", "--otlp", collector.url)
        assert collector.spans == known  # the same ones, to the last attribute

        for span in known.values():
            above = known.get(span.parent_span_id.hex())
            assert above is not None or span.name in ("drive tidy", "run tidy")
        for item in (1, 2, 3):
            (attempt,) = collector.named(f"attempt each[{item - 1}]")
            assert runs.seen(str(item)) == context_of(attempt)
        assert runs.seen("agent") == context_of(collector.named("attempt edit")[-1])

        turn = collector.named("turn claude")[0]
        assert value_of(turn, "gen_ai.provider.name") == "anthropic"
        assert value_of(turn, "gen_ai.request.model") == "claude-sonnet-4-5"
        assert turn.start_time_unix_nano < turn.end_time_unix_nano
        (shipped,) = collector.named("attempt ship")
        assert shipped.status.code == ERROR
        (waited,) = collector.named("gate approve")
        assert value_of(waited, "agentos.gate.answer") == "approved"
        everything = "".join(map(str, collector.requests))
        assert "S3CRET" not in everything
        assert {value_of(one.resource, "service.name") for r in collector.requests for one in r.resource_spans} == {
            "agentos"
        }


@pytest.mark.full  # a real agent, from npm
def test_turns_of_a_real_agent_are_spans_below_it(runs: Runs, tmp_path: Path) -> None:
    with Collector() as collector, scripted("claude", tmp_path, WriteFile("new.txt", "x\n"), says("Done.")) as model:
        (runs.repo.parent / "bin" / "claude").unlink()
        (runs.repo / "workflows" / "real.yaml").write_text(
            "name: real\ntasks:\n  edit: {agent: claude, prompt: Write new.txt, permissions: full}\n"
        )
        runs.finish("run", "real", "--id", "r1", **{**model.env, **collector.env})
        collector.wait_for(lambda it: "run real" in it.names)
        (agent,) = collector.named("invoke_agent claude")
        turns = collector.named("turn claude")
        assert len(turns) >= 2
        assert {turn.parent_span_id for turn in turns} == {agent.span_id}
        assert all(value_of(turn, "gen_ai.usage.output_tokens") for turn in turns)
        assert turns[0].end_time_unix_nano <= turns[1].start_time_unix_nano


# --- collectors that are in trouble ----------------------------------------------------------------------------------


def test_a_collector_that_never_answers_holds_nothing_up(runs: Runs) -> None:
    with Collector("hangs") as collector:
        program = runs.start(
            "-c", f"{SMALL}\nrun(flow, workflow_id='r1')\nprint('returned', flush=True)", **collector.env
        )
        assert program.stdout is not None
        assert program.stdout.readline() == "returned\n"
        runs.end(program)  # and the process ends, whose spans nobody took
        assert json.loads(runs.finish("show", "r1", "--json"))["status"] == "complete"
        collector.manner = "takes"


def test_a_collector_that_was_not_there_gets_the_spans_of_the_run_when_it_is(runs: Runs) -> None:
    with Collector("is busy") as collector:
        runs.python(f"{SMALL}\nrun(flow, workflow_id='r1')", **collector.env)
        collector.wait_for(lambda it: len(it.headers) > 0)
        assert collector.names == set()
        collector.manner = "takes"
        collector.wait_for(lambda it: "run small" in it.names)


def test_a_collector_that_refuses_connections_is_no_matter_of_the_run(runs: Runs) -> None:
    runs.python(f"{SMALL}\nrun(flow, workflow_id='r1')", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert json.loads(runs.finish("show", "r1", "--json"))["status"] == "complete"


@pytest.mark.full
def test_drives_that_ended_while_no_collector_answers_keep_no_more_than_a_few_threads(runs: Runs) -> None:
    text = f"""{SMALL}
import psutil, threading
for number in range(40):
    run(flow, workflow_id=f"r{{number}}")
[exporter] = psutil.Process().children()
most = exporter.num_threads()
while exporter.num_threads() > 10:
    threading.Event().wait(0.1)
print(most)
"""
    assert int(runs.python(text, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")) > 10


class Deaf(SpanExporter):
    """Takes no spans, or only those of others."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        refuses = not self.refused or spans[0].name in self.refused
        return SpanExportResult.FAILURE if refuses else SpanExportResult.SUCCESS


def test_only_a_few_ended_drives_wait_for_a_collector_that_is_away() -> None:
    over, given_up = Event(), Semaphore(0)
    sender = Sender(Deaf(), over)

    def send() -> None:
        with suppress(TryAgainError):
            sender.send([ReadableSpan("late")], lambda: True)
        given_up.release()

    threads = [Thread(target=send, daemon=True) for _ in range(MOST_LATE + 3)]
    for thread in threads:
        thread.start()
    assert all(given_up.acquire(timeout=30) for _ in range(3))
    assert sum(thread.is_alive() for thread in threads) == MOST_LATE
    over.set()


def test_spans_that_a_collector_refuses_hold_up_no_others() -> None:
    sender, over = Sender(Deaf("poison"), Event()), Event()
    Thread(target=sender.send, args=([ReadableSpan("poison")], over.is_set), daemon=True).start()
    sent = Thread(target=sender.send, args=([ReadableSpan("good")], over.is_set), daemon=True)
    sent.start()
    sent.join(30)
    assert not sent.is_alive()


def test_an_exporter_that_was_killed_is_started_again_for_the_next_drive(runs: Runs) -> None:
    text = f"""{SMALL}
import psutil, threading
run(flow, workflow_id="r1")
[exporter] = psutil.Process().children()
exporter.kill()
while exporter.status() != "zombie":
    threading.Event().wait(0.01)
run(flow, workflow_id="r2")
"""
    with Collector() as collector:
        runs.python(text, **collector.env)
        collector.wait_for(lambda it: "r2" in {value_of(one, "agentos.run.id") for one in it.named("run small")})


def test_a_worker_sends_the_spans_of_all_its_runs(runs: Runs) -> None:
    (runs.repo / "workflows" / "quick.yaml").write_text("name: quick\ntasks:\n  one: {run: 'true', effects: none}\n")
    for name in ("r1", "r2", "r3"):
        runs.finish("submit", "quick", "--id", name)
    with Collector() as collector:
        runs.finish("worker", "--once", **collector.env)
        collector.wait_for(lambda it: len(it.named("run quick")) == 3)


@pytest.mark.full
def test_runs_that_a_server_keeps_are_followed_there(runs: Runs) -> None:
    with Collector() as collector:
        runs.python(f"{SMALL}\nrun(flow)", AGENTOS_WORKFLOW_DB=fresh_url(), **collector.env)
        collector.wait_for(lambda it: {"run small", "attempt one"} <= it.names)


# --- switched on, and not --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"},
    ],
    ids=["unset", "disabled", "none"],
)
def test_who_wants_no_spans_loads_and_starts_nothing(runs: Runs, env: dict[str, str]) -> None:
    text = f"""{SMALL}
run(flow)
import sys, psutil
ours = ("telemetry.exporter", "telemetry.spans")
print([name for name in sys.modules if "opentelemetry" in name or name.endswith(ours)])
print(psutil.Process().children())
"""
    assert runs.python(text, **env) == "[]\n[]\n"


def test_the_driver_loads_no_opentelemetry_where_spans_are_sent(runs: Runs) -> None:
    with Collector() as collector:
        heavy = {"opentelemetry.sdk", "opentelemetry.trace", "opentelemetry.proto", "requests", "google.protobuf"}
        text = f"{SMALL}\nrun(flow)\nimport sys\nprint({heavy} & sys.modules.keys())"
        assert runs.python(text, **collector.env) == "set()\n"
        collector.wait_for(lambda it: "run small" in it.names)


def test_a_repository_cannot_have_spans_sent(runs: Runs) -> None:
    (runs.repo / "agentos.toml").write_text('telemetry = "http://127.0.0.1:1"\n')
    process = runs.start("-c", f"{SMALL}\nrun(flow)")
    assert process.wait(60) != 0
    assert process.stderr is not None
    assert "unknown setting" in process.stderr.read()
    process.communicate()


PROVIDER = f"""
import logging
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
{SMALL}
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


def test_a_program_that_has_set_up_opentelemetry_gets_the_spans_itself(runs: Runs) -> None:
    text = f"""{PROVIDER}
@flow.task
def two(one: int) -> int:
    with trace.get_tracer("mine").start_as_current_span("inside"):
        return one
@flow.task(needs=["two"])
async def three() -> int:
    with trace.get_tracer("mine").start_as_current_span("inside three"):
        return 3
run(flow, workflow_id="r1")
for span in exporter.get_finished_spans():
    parent = span.parent.span_id if span.parent else 0
    print(span.name, f"{{span.context.trace_id:032x}} {{span.context.span_id:016x}} {{parent:016x}}", sep="|")
"""
    rows = dict(line.split("|") for line in runs.python(text).splitlines())
    assert {"attempt one", "task two", "layer 0", "drive small", "run small"} <= rows.keys()
    for inside, attempt in {"inside": "attempt two", "inside three": "attempt three"}.items():
        trace, _, parent = rows[inside].split()
        assert rows[attempt].split()[:2] == [trace, parent]
    told = runs.finish("trace", "r1", "--otlp", "-")
    assert all(ids.split()[1] in told for name, ids in rows.items() if not name.startswith("inside"))


def test_a_span_processor_that_breaks_or_hangs_stops_no_run(runs: Runs) -> None:
    text = f"""{PROVIDER}
import threading
from opentelemetry.sdk.trace import SpanProcessor
class Broken(SpanProcessor):
    def on_end(self, span):
        threading.Event().wait() if "hang" in run_id else 1 / 0
provider.add_span_processor(Broken())
for run_id in ("breaks", "hangs"):
    print(run(flow, workflow_id=run_id).status)
"""
    assert runs.python(text) == "complete\ncomplete\n"


def test_what_was_set_up_decides_which_runs_are_sampled(runs: Runs) -> None:
    with Collector() as collector:
        runs.python(f"{SMALL}\nrun(flow)", OTEL_TRACES_SAMPLER="always_off", **collector.env)
        runs.python(f"{SMALL}\nrun(flow)", OTEL_SERVICE_NAME="mine", **collector.env)
        collector.wait_for(lambda it: "run small" in it.names)
        assert len(collector.named("run small")) == 1
        assert value_of(collector.requests[0].resource_spans[0].resource, "service.name") == "mine"


# --- what attempts and log lines carry -------------------------------------------------------------------------------


def test_a_process_of_a_python_task_finds_its_trace_context(runs: Runs) -> None:
    (runs.repo / "own.py").write_text(
        "from agentos import Workflow\nimport os\nflow = Workflow('own')\n"
        "@flow.task(isolation='process')\ndef apart() -> str:\n    return os.environ['TRACEPARENT']\n"
    )
    runs.finish("run", "own.py", "--id", "r1", TRACEPARENT=f"00-{1:032x}-{1:016x}-01", TRACESTATE="other=1")
    found = json.loads(runs.finish("show", "r1", "--json"))["tasks"][0]["output"]
    told = json.loads(runs.finish("trace", "r1", "--otlp", "-"))
    spans = told["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert found in [f"00-{one['traceId']}-{one['spanId']}-01" for one in spans if one["name"] == "attempt apart"]


def test_what_the_workflow_says_about_the_variable_counts(runs: Runs) -> None:
    (runs.repo / "own.yaml").write_text(
        'name: own\ntasks:\n  one: {run: "echo $TRACEPARENT", env: {TRACEPARENT: mine}, effects: none}\n'
    )
    runs.finish("run", "own.yaml", "--id", "r1")
    assert runs.finish("logs", "r1", "one").strip().endswith("mine")


def test_log_lines_of_ours_carry_the_ids_of_what_they_are_about(runs: Runs) -> None:
    text = f"""
import logging, sys
{SMALL}
from agentos import client
log = logging.getLogger("agentos")
handler = logging.StreamHandler(sys.stdout)
none = {{"trace_id": "", "span_id": ""}}
handler.setFormatter(logging.Formatter("%(message).5s|%(trace_id)s|%(span_id)s", defaults=none))
log.addHandler(handler)
log.propagate = False
log.warning("early")
@flow.task
async def inside() -> None:
    log.warning("inner")
@flow.task
def thread() -> None:
    log.warning("other")
run(flow, workflow_id="r1")
log.warning("after")
"""
    rows = dict(line.split("|", 1) for line in runs.python(text).splitlines())
    assert (rows["early"], rows["after"]) == ("|", "|")
    told = json.loads(runs.finish("trace", "r1", "--otlp", "-"))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ids = {one["name"]: f"{one['traceId']}|{one['spanId']}" for one in told}
    assert (rows["inner"], rows["other"]) == (ids["attempt inside"], ids["attempt thread"])

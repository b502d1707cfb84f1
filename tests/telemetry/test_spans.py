"""A journal folded into spans: what they are, and that no process, prefix or kill makes others of it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from agentos.ids import CheckpointId, GateId, TaskId, WorkflowId
from agentos.machine import events as ev
from agentos.render.otlp import encode_json, encode_protobuf, otlp_requests
from agentos.store.codec import encode_events, first_digest
from agentos.workflow.telemetry.spans import Span, SpanFold, spans_of
from agentos.workflow.telemetry.trace_ids import TraceIds
from tests.telemetry.collector import spans_in, wrong_in
from tests.unit.machine.test_walks import Walk
from tests.unit.machine.world import START, Play, Tape, setting_from, tapes

A, B = TaskId("a"), TaskId("b")
RUN = WorkflowId("r1")


class Journal:
    """Events of a run, a second apart."""

    def __init__(self, run: WorkflowId = RUN, start: datetime = START) -> None:
        self.run, self.now = run, start
        self.events: list[ev.Event] = []

    def happens(self, event: type[ev.Event], /, **fields: Any) -> Journal:
        self.now += timedelta(seconds=1)
        given: dict[str, Any] = {"layer": 0, "attempt": 1} if event.type.startswith("task_") else {}
        if event in (ev.TaskComplete, ev.TaskError):
            given["place"] = "0"
        seq = len(self.events) + 1
        self.events.append(event(seq=seq, at=self.now, workflow_id=self.run, **{**given, **fields}))
        return self

    def starts(self, drive: int = 1) -> Journal:
        self.happens(ev.WorkflowStart, name="w", total_layers=1, drive=drive)
        return self.happens(ev.LayerStart, layer=0, tasks=1)

    def spans(self, *, driven: bool = False) -> dict[str, Span]:
        """By name; a name that comes again has a number."""
        found: dict[str, Span] = {}
        for span in spans_of(self.events, driven=driven):
            same = sum(name.partition(" #")[0] == span.name for name in found)
            found[f"{span.name} #{same + 1}" if same else span.name] = span
        return found


def seconds(span: Span) -> float:
    return (span.ended_at - span.started_at).total_seconds()


def test_each_piece_of_work_hangs_below_what_it_is_a_part_of() -> None:
    journal = Journal().starts().happens(ev.TaskStart, task_id=A).happens(ev.TaskComplete, task_id=A)
    journal.happens(ev.Checkpointed, checkpoint_id=CheckpointId("c"), layer=0).happens(ev.WorkflowComplete)
    spans = journal.spans()
    assert list(spans) == ["attempt a", "task a", "layer 0", "drive w", "run w"]
    chain = [spans[name] for name in ("attempt a", "task a", "layer 0", "drive w")]
    assert [span.parent_id for span in chain] == [*(span.span_id for span in chain[1:]), ""]
    assert len({span.trace_id for span in chain}) == 1
    assert spans["run w"].trace_id != spans["drive w"].trace_id
    assert [(link.relation, link.span_id) for link in spans["drive w"].links] == [("run", spans["run w"].span_id)]
    assert {span.error for span in spans.values()} == {None}


def test_a_drive_that_died_ends_with_its_last_sign_of_life_whoever_finds_that() -> None:
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(calls=1))
    nobody_yet, at_work = journal.spans(), journal.spans(driven=True)
    assert at_work == {}
    journal.now += timedelta(days=3)
    journal.starts(drive=2)
    found = journal.spans(driven=True)
    assert found == nobody_yet
    assert (seconds(found["drive w"]), seconds(found["attempt a"])) == (3, 1)
    assert {span.error for span in found.values()} == {"its driver died"}
    assert (found["drive w"].attributes["agentos.end"], found["attempt a"].attributes["agentos.end"]) == (
        "interrupted",
        "cut off",
    )


def test_drives_are_linked_to_the_one_before() -> None:
    spans = Journal().starts().starts(2).happens(ev.WorkflowComplete).spans()
    first, second, run = spans["drive w"], spans["drive w #2"], spans["run w"]
    assert first.trace_id != second.trace_id
    assert [(one.relation, one.trace_id) for one in second.links] == [
        ("run", run.trace_id),
        ("previous_drive", first.trace_id),
    ]
    assert [(one.relation, one.span_id) for one in run.links] == [("drive", first.span_id), ("drive", second.span_id)]


def test_a_fork_is_linked_to_the_run_that_it_comes_from() -> None:
    parent = Journal().starts().happens(ev.WorkflowComplete)
    fork = Journal(WorkflowId("f1"))
    given = {"parent_id": RUN, "checkpoint_id": CheckpointId("c"), "current_layer": 0}
    fork.happens(ev.RunForked, **given, parent_began=parent.events[0].at).starts().happens(ev.WorkflowComplete)
    link = next(one for one in fork.spans()["run w"].links if one.relation == "forked_from")
    assert (link.trace_id, link.span_id) == (
        parent.spans()["run w"].trace_id,
        parent.spans()["run w"].span_id,
    )
    of_earlier_version = Journal(WorkflowId("f2")).happens(ev.RunForked, **given).starts().happens(ev.WorkflowComplete)
    assert "forked_from" not in {one.relation for one in of_earlier_version.spans()["run w"].links}


def test_items_hang_below_their_fan_out_also_in_a_later_drive() -> None:
    first, second = TaskId("f[0]"), TaskId("f[1]")
    journal = Journal().starts()
    journal.happens(ev.PlanChanged, origin="for_each", parent=TaskId("f"), children=(first, second))
    journal.happens(ev.TaskStart, task_id=first).happens(ev.TaskComplete, task_id=first)
    journal.starts(2).happens(ev.TaskStart, task_id=second).happens(ev.TaskComplete, task_id=second)
    journal.happens(ev.TaskComplete, task_id=TaskId("f"), attempt=0, gathered=True).happens(ev.WorkflowComplete)
    spans = journal.spans()
    assert spans["task f[0]"].parent_id == spans["task f"].span_id
    assert spans["task f[1]"].parent_id == spans["task f #2"].span_id
    assert spans["task f"].trace_id != spans["task f #2"].trace_id


def test_calls_of_models_have_the_names_that_opentelemetry_gives_them() -> None:
    call = ev.ModelCall(started=START, provider="openai", model="m", answered_by="m-1")
    turn = ev.ModelCall(started=START, provider="anthropic", model="c", agent="claude")
    used = ev.Usage(input_tokens=10, output_tokens=2, cached_tokens=4, cost_usd=0.5, calls=1)
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.happens(ev.TaskUsage, task_id=A, usage=used, call=call)
    journal.happens(ev.TaskStart, task_id=B)
    journal.happens(ev.TaskSession, task_id=B, session=ev.AgentSession(agent="claude", id="s1"))
    journal.happens(ev.TaskUsage, task_id=B, usage=used, call=turn)
    journal.happens(ev.TaskUsage, task_id=B, usage=ev.Usage(cost_usd=-0.1))
    journal.happens(ev.TaskComplete, task_id=B).happens(ev.TaskComplete, task_id=A).happens(ev.WorkflowComplete)
    spans = journal.spans()
    called, turned, agent = spans["chat m"], spans["turn claude"], spans["invoke_agent claude"]
    assert called.parent_id == spans["attempt a"].span_id
    assert (turned.parent_id, agent.parent_id) == (agent.span_id, spans["attempt b"].span_id)
    assert called.started_at == START
    assert called.attributes["gen_ai.response.model"] == "m-1"
    assert agent.attributes["gen_ai.conversation.id"] == "s1"
    assert spans["attempt b"].attributes["agentos.cost_usd"] == pytest.approx(0.4)
    assert [event.name for event in spans["attempt b"].events] == ["agentos.usage"]
    theirs = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used_names = {name for span in spans.values() for name in span.attributes if name.startswith("gen_ai.")}
    assert used_names - {"gen_ai.usage.cache_read.input_tokens"} <= theirs
    assert used_names > {"gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model"}


def test_a_usage_of_an_earlier_version_is_an_event_of_its_attempt() -> None:
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(input_tokens=7, calls=1)).happens(
        ev.TaskComplete, task_id=A
    )
    spans = journal.spans()
    assert not any(span.kind in ("call", "turn") for span in spans.values())
    assert spans["attempt a"].events[0].attributes == {"gen_ai.usage.input_tokens": 7, "agentos.model_calls": 1}
    assert spans["attempt a"].attributes["gen_ai.usage.input_tokens"] == 7


def test_a_gate_is_in_the_trace_of_the_run_and_outlives_drives() -> None:
    gate = GateId("approve:a")
    asked = {"gate_id": gate, "task_id": A, "kind": "approve", "layer": 0, "question": "S3cret?", "command": "x"}
    journal = Journal().starts().happens(ev.DecisionRequired, **asked).happens(ev.WorkflowPaused, reason="waiting")
    journal.now += timedelta(days=2)
    journal.starts(2).happens(ev.DecisionMade, gate_id=gate, kind="approve", layer=0, answer="approved", author="ada")
    journal.happens(ev.WorkflowComplete)
    spans = journal.spans()
    waited, run = spans["gate approve"], spans["run w"]
    assert (waited.trace_id, waited.parent_id) == (run.trace_id, run.span_id)
    assert seconds(waited) > 2 * 86_400
    assert seconds(spans["drive w"]) < 10
    assert waited.attributes["agentos.gate.answer"] == "approved"
    assert not any("S3cret" in str(span) or "ada" in str(span) for span in spans.values())


def test_an_error_is_told_by_its_first_line_and_no_output_is() -> None:
    failure = ev.TaskFailure(type="E", text="first line\nwhat it printed", traceback="File x, in secret_function")
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.happens(ev.TaskRetry, task_id=A, not_before=START, error=failure)
    journal.happens(ev.TaskStart, task_id=A, attempt=2).happens(ev.TaskError, task_id=A, attempt=2, error=failure)
    journal.happens(ev.WorkflowFailed, reason="1 task failed")
    spans = journal.spans()
    ends = [
        spans[name].attributes["agentos.end"] for name in ("attempt a", "attempt a #2", "task a", "drive w", "run w")
    ]
    assert ends == ["retried", "failed", "failed", "failed", "failed"]
    assert spans["attempt a"].error == spans["task a"].error == "E: first line …"
    assert spans["attempt a"].attributes["error.type"] == "E"
    assert spans["run w"].error == "1 task failed"
    assert not any("printed" in str(span) or "secret_function" in str(span) for span in spans.values())


def test_a_run_that_goes_on_after_it_failed_gets_a_new_span_and_keeps_the_old_one() -> None:
    journal = Journal().starts().happens(ev.WorkflowFailed, reason="x")
    before = journal.spans()
    spans = journal.starts(2).happens(ev.WorkflowComplete).spans()
    assert spans["run w"] == before["run w"]
    assert [link.span_id for link in spans["run w #2"].links if link.relation == "previous_run"] == [
        spans["run w"].span_id
    ]


def test_a_task_that_runs_twice_in_a_drive_has_two_spans() -> None:
    journal = Journal().starts()
    for _ in range(2):
        journal.happens(ev.TaskStart, task_id=A).happens(ev.TaskComplete, task_id=A)
        journal.happens(ev.ResumePlanned, plan_revision=1, reset=(A,), under_way=True)
    spans = journal.spans()
    assert spans["task a"].span_id != spans["task a #2"].span_id
    assert spans["attempt a #2"].parent_id == spans["task a #2"].span_id


def test_what_an_attempt_paid_and_told_too_late_changes_no_span() -> None:
    journal = Journal().starts().happens(ev.TaskStart, task_id=A).happens(ev.TaskComplete, task_id=A)
    fold = SpanFold()
    (before, _) = [span for event in journal.events for span in fold.take(event)]
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(calls=1))
    call = ev.ModelCall(started=START, model="m", agent="claude")
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(calls=1), call=call)
    (late,) = [span for event in journal.events[-2:] for span in fold.take(event)]
    assert (before.events, before.attributes.get("agentos.model_calls")) == ([], None)
    assert (late.kind, late.parent_id) == ("turn", before.span_id)


def test_another_run_of_the_same_name_has_other_ids() -> None:
    first = Journal().starts().happens(ev.WorkflowComplete).spans()
    other = Journal(start=START + timedelta(seconds=1)).starts().happens(ev.WorkflowComplete).spans()
    assert {span.span_id for span in first.values()}.isdisjoint(span.span_id for span in other.values())
    assert {span.trace_id for span in first.values()}.isdisjoint(span.trace_id for span in other.values())


def test_a_clock_that_was_put_back_makes_no_span_end_before_it_began() -> None:
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.now -= timedelta(hours=1)
    journal.happens(ev.TaskComplete, task_id=A).happens(ev.WorkflowComplete)
    assert min(map(seconds, journal.spans().values())) == 0


# --- every prefix, and every walk ------------------------------------------------------------------------------------

written = st.binary(min_size=200, max_size=200).map(Tape)
deaths = st.lists(st.integers(0, 40), max_size=4)


@given(written, tapes(), deaths, st.data())
def test_what_any_prefix_tells_the_whole_tells_as_well(
    workflow: Tape, order: Tape, crashes: list[int], data: st.DataObject
) -> None:
    holds_for_a_prefix(Play(setting_from(workflow), order, crashes).run().journal, data)


@given(st.integers(0, 199), st.data())  # the walks that tests/unit/machine takes
def test_that_holds_for_rollbacks_commands_and_edits_as_well(seed: int, data: st.DataObject) -> None:
    walk = Walk(seed)
    walk.go()
    holds_for_a_prefix(walk.run.journal, data)


def holds_for_a_prefix(journal: list[ev.Event], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(journal)))
    whole = {span.span_id: span for span in spans_of(journal, driven=True)}
    prefix = spans_of(journal[:cut], driven=True)
    assert [whole[span.span_id] for span in prefix] == prefix, "a span that was told changes later"

    everything = spans_of(journal, driven=False)
    assert len({span.span_id for span in everything}) == len(everything), "two spans have one id"
    known = {span.span_id: span for span in everything}
    for span in spans_of(journal[:cut], driven=False):  # its driver dies here
        if span.span_id in known:
            same = known[span.span_id]
            assert (span.kind, span.trace_id, span.parent_id) == (same.kind, same.trace_id, same.parent_id)
        else:
            assert span.kind in ("run", "gate"), "a span is told of one who looks early, and of nobody later"
    for span in everything:
        above = known.get(span.parent_id)
        if span.parent_id and above is not None:
            assert above.trace_id == span.trace_id
            assert above.started_at <= span.started_at or span.kind in ("call", "turn")
        if span.kind in ("layer", "task", "attempt", "agent", "turn", "call"):
            assert above is not None, f"{span.name} hangs below nothing"
    starts = [event for event in journal if isinstance(event, ev.TaskStart)]
    assert len([span for span in everything if span.kind == "attempt"]) == len(starts)


def test_an_attempt_is_told_its_id_before_it_begins() -> None:
    """`TRACEPARENT` is made of the facts alone, and names the span that the journal gives later."""
    journal = Journal().starts().starts(2).happens(ev.TaskStart, task_id=A, attempt=3)
    ids = TraceIds(RUN, journal.events[0].at).attempt(2, A, 3, len(journal.events))
    span = journal.spans()["attempt a"]
    assert ids == (span.trace_id, span.span_id)


# --- as collectors read them -----------------------------------------------------------------------------------------


def test_protobuf_and_json_say_the_same_and_keep_to_the_protocol() -> None:
    walk = Walk(7)
    walk.go()
    call = ev.ModelCall(started=START, provider="ü", model="m", error="timeout")
    journal = Journal().starts().happens(ev.TaskStart, task_id=A)
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(cost_usd=0.25, input_tokens=2**40), call=call)
    journal.happens(ev.TaskUsage, task_id=A, usage=ev.Usage(cost_usd=-0.25))
    spans = [*spans_of(walk.run.journal, driven=False), *spans_of(journal.events, driven=False)]
    (request,) = otlp_requests(spans, "ours")
    read = ExportTraceServiceRequest.FromString(encode_protobuf(request))
    assert wrong_in(read) == []
    told = json.loads(encode_json(request))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert len(told) == len(spans_in(read)) == len(spans)
    for one, decoded in zip(told, spans_in(read), strict=True):
        assert (one["traceId"], one["spanId"]) == (decoded.trace_id.hex(), decoded.span_id.hex())
        assert (one["name"], one.get("parentSpanId", "")) == (decoded.name, decoded.parent_span_id.hex())
        assert int(one["startTimeUnixNano"]) == decoded.start_time_unix_nano
        assert one.get("status", {}).get("code", 0) == decoded.status.code
        assert [_read(given["value"]) for given in one["attributes"]] == [
            getattr(given.value, given.value.WhichOneof("value")) for given in decoded.attributes
        ]
        assert len(one.get("links", [])) == len(decoded.links)
        assert len(one.get("events", [])) == len(decoded.events)


def _read(value: dict[str, Any]) -> Any:
    ((kind, given),) = value.items()
    return int(given) if kind == "intValue" else given


def test_a_fold_tells_nothing_twice() -> None:
    walk = Walk(3)
    walk.go()
    fold = SpanFold()
    told = [span.span_id for event in walk.run.journal for span in fold.take(event)]
    assert len(told) == len(set(told))
    assert fold.interrupt() == []
    assert fold.interrupt() == []


def test_a_usage_that_says_no_call_is_stored_as_earlier_versions_store_it() -> None:
    journal = Journal().starts().happens(ev.TaskUsage, task_id=A, usage=ev.Usage(calls=1))
    rows, _ = encode_events(journal.events, first_digest(RUN))
    assert rows[-1].body == b'{"task_id":"a","layer":0,"attempt":1,"usage":{"calls":1}}'
    assert rows[-1].version == 1

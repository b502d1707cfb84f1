"""What a worker has counted, as Prometheus reads it: its text exposition format, version 0.0.4."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from agentos import __version__
from agentos.client.upkeep import STATUSES, DatabaseSurvey, Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ATTEMPT_ENDS = ("complete", "failed", "failed_safe", "cancelled", "retrying", "suspended")
RUN_ENDS = ("complete", "failed", "aborted", "waiting", "paused", "drained")

Labels = Mapping[str, str]


def metrics_text(survey: DatabaseSurvey) -> str:
    """All metrics of a worker. Series that a dashboard waits for are there from the start, at 0."""
    work, counted = survey.work, survey.figures
    age_s = 0.0 if work.oldest_due is None else max(0.0, (datetime.now(UTC) - work.oldest_due).total_seconds())
    families = [
        _family("agentos_build_info", "gauge", "The version of AgentOS.", [({"version": __version__}, 1)]),
        _family(
            "agentos_runs", "gauge", "Runs by status.",
            [({"status": status}, work.runs.get(status, 0)) for status in STATUSES],
        ),
        _family(
            "agentos_queue_depth", "gauge", "Runs that a worker may take now, by queue.",
            [({"queue": queue}, number) for queue, number in sorted(work.due.items())],
        ),
        _family("agentos_queue_oldest_age_seconds", "gauge", "Age of the oldest run that a worker may take now.",
                [({}, age_s)]),
        _family("agentos_leases", "gauge", "Runs that somebody drives.", [({}, work.leases)]),
        _family("agentos_lease_oldest_overdue_seconds", "gauge",
                "For how long the lease has been over that nobody took up for longest.", [({}, work.overdue_s)]),
        _family("agentos_worker_lease_oldest_age_seconds", "gauge",
                "For how long this worker has held the lease it holds for longest.", [({}, survey.oldest_drive_s)]),
        _family("agentos_worker_runs", "gauge", "Runs that this worker drives.", [({}, survey.driven)]),
        _family("agentos_worker_runs_limit", "gauge", "Runs that it drives at a time.", [({}, survey.limit)]),
        _family(
            "agentos_worker_databases", "gauge", "Databases it looks at, by whether they can be read.",
            [({"readable": "yes"}, survey.readable), ({"readable": "no"}, survey.unreadable)],
        ),
        _family("agentos_worker_look_age_seconds", "gauge", "How long ago it last looked for runs.",
                [({}, math.inf if survey.look_age_s is None else survey.look_age_s)]),
        _family("agentos_worker_runs_adopted_total", "counter", "Runs it took.", [({}, counted.adopted)]),
        _family(
            "agentos_worker_runs_ended_total", "counter", "Drives of runs that ended, by how.",
            [({"status": status}, counted.runs_ended[status]) for status in RUN_ENDS],
        ),
        _family(
            "agentos_worker_attempts_ended_total", "counter", "Attempts at tasks that ended, by how.",
            [({"status": status}, counted.attempts_ended[status]) for status in ATTEMPT_ENDS],
        ),
        _family(
            "agentos_worker_tokens_total", "counter", "Tokens that models were paid for.",
            [
                ({"model": model, "direction": direction}, number)
                for (model, direction), number in sorted(counted.tokens.items())
            ],
        ),
        _family(
            "agentos_worker_cost_dollars_total", "counter", "US dollars that models were paid, as far as known.",
            [({"model": model}, dollars) for model, dollars in sorted(counted.dollars.items())],
        ),
        _histogram("agentos_worker_journal_commit_seconds", "How long it takes until events are durable.",
                   counted.commits),
    ]  # fmt: skip
    return "".join(families)


def _family(name: str, kind: str, about: str, series: Iterable[tuple[Labels, float]]) -> str:
    rows = "".join(_row(name, labels, value) for labels, value in series)
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{rows}"


def _histogram(name: str, about: str, durations: Durations) -> str:
    rows, below = "", 0
    for bound, count in zip((*durations.bounds, math.inf), durations.counts, strict=True):
        below += count
        rows += _row(f"{name}_bucket", {"le": _number(bound)}, below)
    rows += _row(f"{name}_sum", {}, durations.sum_s) + _row(f"{name}_count", {}, below)
    return f"# HELP {name} {about}\n# TYPE {name} histogram\n{rows}"


def _row(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{told}}} {_number(value)}\n" if told else f"{name} {_number(value)}\n"


def _escape(text: str) -> str:
    # What is no text, or would be taken for the end of a line by some reader, is written out.
    shown = "".join(one if one.isprintable() or one == "\n" else f"\\x{ord(one):02x}" for one in text)
    return shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)

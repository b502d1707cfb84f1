"""Tools that only look. What stands below a tool's name is what a model reads of it."""

from __future__ import annotations

import shlex
from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from agentos.client.answers import choice_argument
from agentos.client.definitions import list_workflows
from agentos.client.detached import check_detached, preview_detached
from agentos.client.diffs import FilesDiff, diff, task_diff
from agentos.client.places import FoundRun, RunStatus, find_run, list_runs
from agentos.client.task_logs import LogLine, RunLogs
from agentos.client.types import events as ev
from agentos.client.views import (
    AttemptView,
    GateView,
    RunView,
    StoredRun,
    TaskView,
    money,
    next_command,
    read_run,
    run_view,
    why,
)
from agentos.ids import TaskId, short_id
from agentos.mcp.answers import LINE, excerpt_patch
from agentos.render.comparison_text import comparison_lines
from agentos.render.difference_text import difference_lines
from agentos.render.event_text import resume_in_short
from agentos.render.text import ago, duration, short
from agentos.render.value_text import (
    change_lines,
    output_in_short,
    readable_value,
    stored_in_short,
    unwrap_shell_output,
)

Answer = dict[str, Any]
Limit = Annotated[int, Field(ge=1, le=1000)]
Count = Annotated[int, Field(ge=0, le=10_000_000)]

MOST_GATES, MOST_CHECKPOINTS, MOST_FILES, MOST_ATTEMPTS, MOST_LINES = 10, 3, 40, 3, 60
_URGENT = ("failed", "failed_safe", "cancelled", "waiting", "interrupted", "retrying", "running", "pending")
"""Statuses that a reader wants to see first; what is complete or skipped comes last."""
HUMAN = "Only a human answers. Show the question and these commands to yours, to be typed in a terminal of their own."
AGENT = "No tool answers gates. This one takes an agent's answer: type the command."


class Reads:
    """Looks at the runs of one worktree."""

    def __init__(self, repo: Path) -> None:
        self.repo = repo

    def run_list(self, status: Sequence[RunStatus] = (), limit: Limit = 20, before: str = "") -> Answer:
        """Runs of this repository, newest first. `before`: a run's id, to go on behind it."""
        behind = self.find(before) if before else None
        found = list_runs(self.repo, statuses=status, before=behind, limit=limit + 1).runs
        now, shown = datetime.now(UTC), [run.record for run in found[:limit]]
        rows = [
            {
                "run": one.workflow_id,
                "workflow": one.name,
                "status": one.status,
                "layer": f"{one.layer + 1}/{one.layers}",
                "began": ago(one.created_at, now),
            }
            for one in shown
        ]
        return {"runs": rows, "more": f"before={shown[-1].workflow_id}" if len(found) > limit else None}

    def run_show(self, run: str, status: Sequence[str] = (), limit: Limit = 20, offset: Count = 0) -> Answer:
        """How a run stands: tasks by status (what failed or waits first), open gates, checkpoints.

        `status` picks tasks; `offset` pages. A gate comes with the commands that a human types."""
        return self.show(self.find(run), status, limit, offset)

    def show(self, found: FoundRun, status: Sequence[str] = (), limit: Limit = 20, offset: Count = 0) -> Answer:
        journal = read_run(found, whole=False)
        view = run_view(journal, values=False)
        now = datetime.now(UTC)
        tasks = [(_status(view, task), task) for task in view.tasks]
        picked = [row for row in tasks if not status or row[0] in status]
        picked.sort(key=lambda row: _URGENT.index(row[0]) if row[0] in _URGENT else len(_URGENT))
        end = offset + limit
        gates = [gate for gate in view.gates if gate.open]
        return {
            "run": view.workflow_id,
            "workflow": view.name,
            "status": view.status,
            "began": ago(view.created_at, now),
            "paid": money(view.usage.cost_usd) if view.usage.cost_usd else None,
            "counts": Counter(name for name, _ in tasks),
            "tasks": [_task_row(journal, name, task, now) for name, task in picked[offset:end]],
            "more_tasks": f"{len(picked) - end}: offset={end}" if len(picked) > end else None,
            "gates": [_gate_row(view, gate) for gate in gates[:MOST_GATES]],
            "more_gates": max(0, len(gates) - MOST_GATES) or None,
            "checkpoints": [cut.id for cut in journal.checkpoints[-MOST_CHECKPOINTS:]],
            "next": next_command(view, journal.checkpoints) if not gates else None,
        }

    def task_why(self, run: str, task: str, max_chars: Count = 3000) -> Answer:
        """Why a task failed, waits, was skipped or ran again: its attempts, its error, what it needs, what it gave."""
        found = self.find(run)
        journal = read_run(found, whole=False)
        told = why(found, task, journal=journal)
        gave = bytes(journal.facts.task(TaskId(told.task_id)).output) if told.status == "complete" else b""
        attempts = [_attempt_row(one) for one in told.attempts[-MOST_ATTEMPTS:]]
        attempts[-1:] = [row | {"error": None} for row in attempts[-1:]]  # told in full below
        failed = next((one.error for one in reversed(told.attempts) if one.error is not None), None)
        return {
            "task": told.task_id,
            "status": told.status,
            "why": short(told.why, 2 * LINE),
            "needs": dict(islice(told.needs.items(), MOST_LINES)),
            "gates": told.gates[:MOST_GATES],
            "decisions": [
                f"{one.gate_id}: {one.choice or one.answer} by {one.author} {short(one.reason, LINE)}".rstrip()
                for one in told.decisions[-MOST_GATES:]
            ],
            "resume": f"{told.resume.verdict}: {short(told.resume.reason, LINE)}" if told.resume else None,
            "attempts": attempts,
            "error": _error_text(failed, max_chars) if failed is not None else None,
            "output": _output_text(gave, max_chars) if gave else None,
            "next": told.command,
        }

    def task_logs(
        self, run: str, task: str = "", tail: Limit = 40, skip: Count = 0, contains: str = "", max_chars: Count = 6000
    ) -> Answer:
        """The last lines that a task (or, without one, a whole run) printed.

        `skip`: so many lines at the end are left out, to page back. `contains`: only lines with this text."""
        printed = RunLogs(self.find(run), task or None)
        kept: deque[LogLine] = deque(maxlen=tail + skip)
        total = 0
        for line in printed.read():
            if contains in line.text:
                kept.append(line)
                total += 1
        lines: deque[str] = deque()
        room = max_chars
        for line in islice(reversed(kept), skip, None):
            text = f"{line.at[11:19]} {'' if task else f'{line.task_id} '}{line.stream}: {short(line.text, LINE)}"
            room -= len(text) + 1
            if room < 0:
                break
            lines.appendleft(text)
        left = total - skip - len(lines)
        more = f"{left} earlier: skip={skip + len(lines)}" if left > 0 else None
        return {"lines": total, "text": "\n".join(lines), "more": more}

    def task_diff(
        self,
        run: str,
        task: str,
        paths: Sequence[str] = (),
        offset: Count = 0,
        max_chars: Count = 4000,
    ) -> Answer:
        """What a task's newest attempt did to files: their names, and the patch. `max_chars=0`: names alone."""
        found = self.find(run)
        journal = read_run(found, whole=False)
        told, patch = task_diff(found, task, paths=paths, journal=journal)
        return {
            **_files(told.files),
            "tasks_at_work_meanwhile": told.others[:MOST_GATES],
            **excerpt_patch(patch, [journal], offset, max_chars),
        }

    def checkpoint_diff(
        self,
        first: str,
        second: str,
        paths: Sequence[str] = (),
        offset: Count = 0,
        max_chars: Count = 0,
    ) -> Answer:
        """How the second checkpoint (or run, as it stands) differs from the first: state and files.

        `max_chars`: so much of the patch, too."""
        told, patch = diff(first, second, paths=paths, repo=self.repo)
        lines = list(difference_lines(told.difference))
        journals = [read_run(self.find(one.workflow_id), whole=False) for one in (told.first, told.second)]
        return {
            "same": told.same,
            "state": lines[:MOST_LINES],
            "more_state": max(0, len(lines) - MOST_LINES) or None,
            **_files(told.files),
            **excerpt_patch(patch, journals, offset, max_chars),
        }

    def resume_preview(
        self,
        run: str,
        rerun: Sequence[str] = (),
        files: Literal["ask", "restore", "keep"] = "ask",
        limit: Limit = 20,
    ) -> Answer:
        """What run_resume would do with the same arguments: what runs again and why, what is kept. Starts nothing."""
        found = self.find(run)
        told = preview_detached(found, rerun=rerun, files=files)
        rows = [row for row in told.plan.verdicts if row.verdict not in ("reuse", "run", "orphan")]
        foreseen = told.files
        return {
            "in_short": resume_in_short(told.plan.counts),
            "tasks": [{"task": row.task_id, row.verdict: short(row.reason, LINE)} for row in rows[:limit]],
            "more_tasks": max(0, len(rows) - limit) or None,
            "workflow": comparison_lines(told.compared),
            "files_put_back": [*change_lines(foreseen.changes[:MOST_FILES])] if foreseen is not None else None,
            "more_files": max(0, len(foreseen.changes) - MOST_FILES) if foreseen is not None else None,
            "files_asks": foreseen.asks or foreseen.problem if foreseen is not None else None,
        }

    def workflow_list(self, limit: Limit = 50) -> Answer:
        """Workflows that can be started by name: the files in workflows/."""
        found = list_workflows(self.repo)
        return {"workflows": sorted(found)[:limit], "more": max(0, len(found) - limit) or None}

    def workflow_check(self, workflow: str, limit: Limit = 20) -> Answer:
        """Every problem of a workflow (a name or a file), else its plan and parameters. Runs no task; a Python file is
        imported by another process."""
        told = check_detached(workflow, self.repo)
        return {
            "ok": not told.problems,
            "workflow": told.name,
            "problems": [short(str(one), LINE) for one in told.problems[:limit]],
            "more_problems": max(0, len(told.problems) - limit) or None,
            "warnings": [short(one, LINE) for one in told.warnings[:limit]],
            "params": [
                {"name": one.name, "required": one.required, "type": one.type, "default": _cut(one.default)}
                for one in told.params[:limit]
            ],
            "layers": len(told.layers),
            "tasks": [
                {"task": one.id, "kind": one.kind, "needs": one.needs[:limit], "gate": short(one.gate, LINE)}
                for one in told.tasks[:limit]
            ],
            "more_tasks": max(0, len(told.tasks) - limit) or None,
        }

    def find(self, run: str) -> FoundRun:
        return find_run(run, self.repo)


def _status(view: RunView, task: TaskView) -> str:
    return "interrupted" if view.is_cut_off(task) else task.status


def _task_row(journal: StoredRun, status: str, task: TaskView, now: datetime) -> Answer:
    error = task.error if isinstance(task.error, ev.TaskFailure) else None
    running = status == "running" and task.started_at is not None
    return {
        "task": task.id,
        "status": status,
        "attempts": task.attempts if task.attempts > 1 else None,
        "for": duration((now - task.started_at).total_seconds()) if running and task.started_at else None,
        "error": short(error.in_short, LINE) if error is not None else None,
        "because": task.because if task.because is not msgspec.UNSET else None,
        "output": output_in_short(journal, task, 100).strip('"'),
    }


def _gate_row(view: RunView, gate: GateView) -> Answer:
    # With choices, the command names the first of them: one line for each.
    arguments = [choice_argument(gate.kind, choice) for choice in gate.choices]
    bare = gate.command.removesuffix(arguments[0] if arguments else "")
    return {
        "gate": gate.id,
        "task": gate.task_id,
        "question": short(gate.question, LINE),
        "inputs": short(gate.inputs, LINE),
        "covers": list(islice(gate.covers or (), MOST_GATES)),
        "stale": [check.task_id for check in gate.verified if check.stale][:MOST_GATES],
        "asks_again": short(gate.again, LINE),
        "commands": [
            *(bare + one for one in arguments or [""]),
            shlex.join(["agentos", "reject", short_id(view.workflow_id), gate.id]),
        ],
        "who": AGENT if gate.by == "agent" else HUMAN,
    }


def _attempt_row(attempt: AttemptView) -> Answer:
    took = (attempt.ended_at - attempt.started_at).total_seconds() if attempt.ended_at is not None else None
    return {
        "attempt": attempt.attempt,
        "end": "interrupted" if attempt.end == "cut off" else attempt.end,
        "took": duration(took) if took is not None else None,
        "error": short(attempt.error.in_short, 200) if attempt.error is not None else None,
    }


def _error_text(error: ev.TaskFailure, most: int) -> str:
    """The end of it, where what went wrong usually stands."""
    text = f"{error.type}: {error.text}\n{error.traceback}".rstrip()
    return text if len(text) <= most else f"{short(error.type, 80)}: … {text[len(text) - most :]}"


def _output_text(stored: bytes, most: int) -> str:
    try:
        value = unwrap_shell_output(readable_value(stored))
    except msgspec.DecodeError:  # of a very large one only the beginning was read
        return stored_in_short(stored, most, printed=stored.startswith(b'{"stdout":'))
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= most else f"{short(text, most)} ({len(text)} characters)"


def _files(files: FilesDiff) -> Answer:
    return {
        "files": [*change_lines(files.changes[:MOST_FILES])],
        "more_files": max(0, len(files.changes) - MOST_FILES) or None,
        "not_compared": files.why,
    }


def _cut(value: Any) -> Any:
    text = msgspec.json.encode(value).decode()
    return value if len(text) <= LINE else short(text, LINE)

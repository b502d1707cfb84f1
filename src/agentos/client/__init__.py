"""The one door for surfaces: what a user, a command, a page or a tool asks of AgentOS.

places       which runs there are, here and in every worktree known
runs         run, resume, fork; preview a resume; drive one and look on
queue        submit a run for a worker, and wait for its end; schedules
detached     start and resume with a driver that outlives the caller
views        a run at one glance, by the clock, as spans, why a task is as it is; whatever changes here
task_logs    what tasks printed, also while they print it
diffs        what differs between two states, and what a task did to files
waiting      what waits for an answer; what runs come to
answers      what a gate showed, and answering it
files        files put back, and what that replaced
definitions  workflows: list, load, check, draw
proofs       whether tasks may be repeated
upkeep       the database, settings that need trust, the doctor, workers
worktree     the runs of one worktree: `Client`
process      what a program that drives runs needs: signals, and no secrets in what it prints
langgraph    LangGraph's threads, and the files that belong to their checkpoints
types        names for what the others take and hand out

Nothing is loaded before it is asked for. Blocking calls have their asynchronous form beside them where they make a run
go: `run` and `arun`, `resume` and `aresume`; so has the handle that `submit` gives. Everything else only reads, or
posts a command.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentos.client.answers import answer, approve, deliver, gate, reject
    from agentos.client.definitions import check, list_workflows, load
    from agentos.client.detached import resume_detached, start_detached
    from agentos.client.diffs import diff, task_diff
    from agentos.client.files import purge, restore, undo, undo_points
    from agentos.client.places import find_run, list_runs
    from agentos.client.proofs import prove
    from agentos.client.queue.schedules import add_schedule, list_schedules, remove_schedule
    from agentos.client.queue.submission import submit
    from agentos.client.runs import (
        Durability,
        aresume,
        arun,
        fork,
        preview_resume,
        resolve_drive_options,
        resume,
        run,
    )
    from agentos.client.task_logs import follow_logs, logs
    from agentos.client.upkeep import back_up_database, doctor, restore_database
    from agentos.client.views import timeline, trace, view, watch_all, why
    from agentos.client.waiting import inbox
    from agentos.client.worktree import Client

_HOMES = {
    "answers": ("answer", "approve", "deliver", "gate", "reject"),
    "definitions": ("check", "list_workflows", "load"),
    "detached": ("resume_detached", "start_detached"),
    "diffs": ("diff", "task_diff"),
    "files": ("purge", "restore", "undo", "undo_points"),
    "places": ("find_run", "list_runs"),
    "proofs": ("prove",),
    "queue.schedules": ("add_schedule", "list_schedules", "remove_schedule"),
    "queue.submission": ("submit",),
    "runs": ("Durability", "aresume", "arun", "fork", "preview_resume", "resolve_drive_options", "resume", "run"),
    "task_logs": ("follow_logs", "logs"),
    "upkeep": ("back_up_database", "doctor", "restore_database"),
    "views": ("timeline", "trace", "view", "watch_all", "why"),
    "waiting": ("inbox",),
    "worktree": ("Client",),
}

__all__ = [
    "Client", "Durability", "add_schedule", "answer", "approve", "aresume", "arun", "back_up_database", "check",
    "deliver", "diff", "doctor", "find_run", "follow_logs", "fork", "gate", "inbox", "list_runs", "list_schedules",
    "list_workflows", "load", "logs", "preview_resume", "prove", "purge", "reject", "remove_schedule",
    "resolve_drive_options", "restore", "restore_database", "resume", "resume_detached", "run", "start_detached",
    "submit", "task_diff", "timeline", "trace", "undo", "undo_points", "view", "watch_all", "why",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

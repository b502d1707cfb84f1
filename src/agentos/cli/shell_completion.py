"""What the shell offers after TAB: ids that are there. Quick, and silent whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from agentos.cli.render.text import printable, short

if TYPE_CHECKING:
    from agentos.machine.facts.fold import Facts
    from agentos.workflow.place.place import Place
    from agentos.workflow.place.run_search import FoundRun

MOST = 200
"""No more than so many are offered; nobody reads a longer list."""
MOST_RUNS = 2_000
"""Of older runs than the newest of these, ids are typed: who waits for TAB waits for the whole list."""

_PLAIN = "_@%+=:,./[]-"
"""Signs that no shell takes for anything else; brackets stand in the ids of fan-outs."""

Offered = Iterable[tuple[str, str]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _silent(offer: Callable[[dict[str, Any]], Offered]) -> Completer:
    """Makes a completer of what gives (value, help) pairs from the options and arguments typed so far."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        items: list[CompletionItem] = []
        # A shell that completes shows whatever is printed in the middle of the line being typed: whatever fails here,
        # a fault of ours included, offers nothing and says nothing.
        with suppress(Exception):
            for value, about in offer(context.params):
                if value.startswith(incomplete) and _typable(value) and len(items) < MOST:
                    items.append(CompletionItem(value, help=short(printable(about), 100)))
        return items

    return complete


def _typable(value: str) -> bool:
    """Whether it means itself where it is put on the command line: bash quotes nothing of what it is given.

    An id may come from an imported file or a clone, and TAB must not put `$(…)` before somebody's cursor.
    """
    return value[:1] != "-" and all(character.isalnum() or character in _PLAIN for character in value)


def _repo(typed: dict[str, Any]) -> Path | None:
    repo = typed.get("repo")
    return Path(repo) if repo else None


def _place(typed: dict[str, Any]) -> Place:
    """Where this worktree keeps its runs, if that is a file: nobody who types TAB means to connect to a server."""
    from agentos.workflow.place.place import find_place

    place = find_place(_repo(typed), make=False)
    if place.is_shared:
        raise LookupError("a server's runs are not offered")
    return place


def _runs(typed: dict[str, Any]) -> Offered:
    from agentos.workflow.place.run_search import list_runs

    for record in list_runs(_place(typed), limit=MOST_RUNS):
        yield record.workflow_id, f"{record.name}, {record.status}"


def _checkpoints(typed: dict[str, Any]) -> Offered:
    from agentos.workflow.place.run_search import reading

    with reading(_place(typed)) as store:
        for record in store.list_runs(limit=MOST_RUNS):
            for cut in reversed(store.list_checkpoints(record.workflow_id)):
                yield cut.id, f"{record.name}, layer {cut.layer}"


def _facts(typed: dict[str, Any]) -> tuple[FoundRun, Facts]:
    from agentos.exceptions import WorkflowConfigurationError
    from agentos.machine.facts.fold import fold
    from agentos.workflow.place.run_search import find_run, reading

    with suppress(WorkflowConfigurationError):  # no repository here: the run may be in a worktree of the index
        _place(typed)
    found = find_run(str(typed["run"]), _repo(typed))
    with reading(found.place) as store:
        return found, fold(found.record.workflow_id, store.read_events(found.record.workflow_id))


def _tasks(typed: dict[str, Any]) -> Offered:
    from agentos.machine.rules.plan_changes import current_plan
    from agentos.workflow.define.plans import decode_plan
    from agentos.workflow.place.run_search import reading

    found, facts = _facts(typed)
    with reading(found.place) as store:
        plan, _ = current_plan(decode_plan(store.read_plan(found.record.workflow_id)), facts.changes)
    return ((task_id, facts.task(task_id).status) for layer in plan.layers for task_id in layer)


def _gates(typed: dict[str, Any]) -> Offered:
    _, facts = _facts(typed)
    for gate_id in facts.open_gates:
        gate = facts.gates[gate_id].opened
        # The task's id names its gate as well, and holds no colon, at which bash breaks words.
        yield gate.task_id or gate_id, gate.question.replace("\n", " ")


def _workflows(typed: dict[str, Any]) -> Offered:
    from agentos.workflow.place.location import asked_directory
    from agentos.worktree.git import find_repository

    folder = find_repository(asked_directory(_repo(typed))).root / "workflows"
    for path in sorted(folder.iterdir()):
        if path.suffix in (".py", ".yaml", ".yml") and not path.name.startswith("_"):
            yield path.stem, path.name


runs = _silent(_runs)
"""Ids of runs of this worktree, newest first."""
checkpoints = _silent(_checkpoints)
"""Ids of kept checkpoints of this worktree's runs."""
tasks = _silent(_tasks)
"""Ids of the tasks of the run that was typed before."""
gates = _silent(_gates)
"""Open gates of the run that was typed before."""
_named_workflows = _silent(_workflows)


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell knows best."""
    return [CompletionItem(incomplete, type="file")]


def workflows(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the workflows in `workflows/`, and files, which the shell knows best."""
    return [*_named_workflows(context, parameter, incomplete), *files(context, parameter, incomplete)]

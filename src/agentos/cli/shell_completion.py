"""What the shell offers after TAB: ids that are there. Quick, and silent whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from agentos.render.text import printable, short

if TYPE_CHECKING:
    from agentos.client.places import Place
    from agentos.client.views import RunView

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
                # Only what means itself on the command line: bash quotes nothing of what it is given. An id may come
                # from an imported file or a clone, and TAB must not put `$(…)` before somebody's cursor.
                is_plain = value[:1] != "-" and all(character.isalnum() or character in _PLAIN for character in value)
                if value.startswith(incomplete) and is_plain and len(items) < MOST:
                    items.append(CompletionItem(value, help=short(printable(about), 100)))
        return items

    return complete


def _repo(typed: dict[str, Any]) -> Path | None:
    repo = typed.get("repo")
    return Path(repo) if repo else None


def _place(typed: dict[str, Any]) -> Place:
    """Where this worktree keeps its runs, if that is a file: nobody who types TAB means to connect to a server."""
    from agentos.client.places import find_place

    place = find_place(_repo(typed), make=False)
    if place.is_shared:
        raise LookupError("a server's runs are not offered")
    return place


def _runs(typed: dict[str, Any]) -> Offered:
    from agentos.client.worktree import Client

    for record in Client(place=_place(typed)).list_runs(limit=MOST_RUNS):
        yield record.workflow_id, f"{record.name}, {record.status}"


def _checkpoints(typed: dict[str, Any]) -> Offered:
    from agentos.client.places import list_checkpoints

    for record, cut in list_checkpoints(_place(typed), most_runs=MOST_RUNS):
        yield cut.id, f"{record.name}, layer {cut.layer + 1}"


def _view(typed: dict[str, Any]) -> RunView:
    from agentos.client.views import view
    from agentos.exceptions import WorkflowConfigurationError

    with suppress(WorkflowConfigurationError):  # no repository here: the run may be in a worktree of the index
        _place(typed)
    return view(str(typed["run"]), _repo(typed))


def _tasks(typed: dict[str, Any]) -> Offered:
    return ((task.id, task.status) for task in _view(typed).tasks)


def _gates(typed: dict[str, Any]) -> Offered:
    for gate in _view(typed).gates:
        if gate.open:
            # The task's id names its gate as well, and holds no colon, at which bash breaks words.
            yield gate.task_id or gate.id, gate.question.replace("\n", " ")


def _workflows(typed: dict[str, Any]) -> Offered:
    from agentos.client.definitions import list_workflows

    return ((name, path.name) for name, path in list_workflows(_repo(typed)).items())


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

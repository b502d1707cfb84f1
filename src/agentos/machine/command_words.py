"""The words of a task's command: some of them may name files, and an approval of the task is about these, too."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from agentos.dag.define.stored_values import resolve_items
from agentos.dag.define.task import TaskDef
from agentos.dag.language.references import as_text, look_up, references_in, resolve
from agentos.dag.language.tokens import SECRETS
from agentos.dag.plan.plan import Plan, PlannedTask
from agentos.machine.facts.fold import Facts
from agentos.machine.rules.scope import scope_of

# Texts, which `re` compiles when they are first used: most runs ask nobody.
_WRITTEN_TO = r"[0-9&]*>[>|]?\s*[^\s;|&()<>]+"
"""A redirection: what it names is written, not run."""
_VARIABLE = r"\$\{?\w+\}?/?"
"""What a shell puts there is not known; what follows it may still name a file."""
_BETWEEN_WORDS = r"[\s;|&()<>\"'`$]+"
_INSIDE_A_WORD = r"[=:,@{}]+"
_LONGEST = 4096
_LONGEST_QUOTED = 16 * 1024
"""The time that shlex takes for a word grows with the square of its length, and an output may be one of megabytes."""


class CommandWords(msgspec.Struct, frozen=True, kw_only=True):
    """Where a command runs, relative to the root, and what may name files in it."""

    cwd: str
    words: frozenset[str]


def has_command(definition: TaskDef) -> bool:
    """Whether the task runs a command that its author wrote."""
    return any(_commands(definition))


def command_words(plan: Plan, facts: Facts, task: PlannedTask) -> CommandWords:
    """Every word of the task's commands, references looked up; of a fan-out those of all its items.

    EvaluationError where a reference leads nowhere.
    """
    definition = task.definition
    scope = scope_of(plan, facts, task)
    scopes: list[Mapping[str, Any]] = [scope]
    if definition.for_each is not None:
        scopes = [{**scope, definition.for_each.as_: item} for item in resolve_items(definition, scope)]
    words: set[str] = set()
    for one in scopes:
        for command in _commands(definition):
            # Rather too many than too few: a word that names no file does no harm.
            values = [look_up(ref, one) for ref in references_in(command) if ref.root != SECRETS]
            written = [command] if isinstance(command, str) else _texts(resolve(command, one))
            words.update(word for text in (*_texts(values), *written) for word in words_in(text))
    cwd = definition.cwd if references_in(definition.cwd) and definition.for_each else resolve(definition.cwd, scope)
    return CommandWords(
        cwd=as_text(cwd), words=frozenset(word for word in words if 0 < len(word) < _LONGEST and "\0" not in word)
    )


def _commands(definition: TaskDef) -> Iterator[str | tuple[str, ...]]:
    if definition.run:
        yield definition.run
    if definition.agent is not None:
        yield from filter(None, (definition.agent.verify, definition.agent.command))


def words_in(text: str) -> Iterator[str]:
    """What may name a file in a command, or in one argument of it, which may be a script."""
    yield text
    read = re.sub(_WRITTEN_TO, " ", text)
    for part in [read] if len(read) <= _LONGEST_QUOTED else read.splitlines():
        if len(part) <= _LONGEST_QUOTED:
            with suppress(ValueError):  # quotes that do not end: no shell would take it
                yield from shlex.split(part)  # so that a name may hold blanks
    for word in re.split(_BETWEEN_WORDS, re.sub(_VARIABLE, " ", read)):
        yield word
        yield from re.split(_INSIDE_A_WORD, word)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    else:
        yield as_text(value)

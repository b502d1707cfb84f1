"""Settings of a repository: what runs here do unless a call or a flag says otherwise.

    the settings file  <  variables AGENTOS_<NAME>  <  flags and arguments            (the right one wins)

Where state lives is settled first and apart, by `location`: `database` is read there, and only shown here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.store.backends import URL_KINDS, without_password
from agentos.store.port import LEASE_S
from agentos.tasks.llm.model_settings import CallLimits, LlmDefaults, ModelSettings, Price
from agentos.workflow.place import setting_kinds as kinds
from agentos.workflow.place.location import VARIABLE
from agentos.workflow.place.setting_kinds import Fault, Kind
from agentos.workflow.place.settings_file import SettingsFile, read_settings_file

DEFAULT = "default"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, with its default. Each is documented in docs/settings.md."""

    database: str | None = None
    """Where state lives, as the file or AGENTOS_WORKFLOW_DB names it; None: `.agentos/` at the root."""
    repository: str | None = None
    """What a shared database calls this repository; None: by its remote `origin`, else by host and folder."""
    durability: Literal["full", "process"] = "full"
    """What a finished step survives: `full` the loss of power, `process` a killed process only."""
    keep: int = 5
    """Checkpoints kept for each run; 0 keeps all."""
    lease_s: float = LEASE_S
    """After so many seconds without a sign of life another process may take a run over."""
    space_warning: int = 100 * 1024 * 1024
    """A database larger than this is worth a warning; in bytes, or as "100 MB"."""
    max_concurrency: int | None = None
    """At most so many tasks of a run at once; a workflow that asks for fewer gets fewer. None: the workflow's own."""
    gates: Literal["stop", "wait", "reject"] = "stop"
    """Where only gates are left: end as waiting, stay and wait, or say no to all of them."""
    secrets: tuple[str, ...] = ()
    """Names of variables whose values are masked, beside those that look like secrets."""
    on_wait: tuple[str, ...] = ()
    """The command to run when a drive ends waiting for an answer, as an argument list."""
    on_end: tuple[str, ...] = ()
    """The command to run when a run ends complete, failed or aborted, as an argument list."""
    log_limit: int = 64 * 1024 * 1024
    """The log of one attempt grows no larger than this; in bytes, or as "10 MB". 0 keeps no logs."""
    llm: LlmDefaults = LlmDefaults()
    """Where llm tasks ask that do not say it themselves, and with which key."""
    limits: Mapping[str, CallLimits] = {}
    """For each credential, by name: how many calls at once and a minute, how much money a day."""
    prices: Mapping[str, Price] = {}
    """For each model, by name: what a million tokens cost."""

    @property
    def models(self) -> ModelSettings:
        """What attempts that call models or agents are told."""
        return ModelSettings(limits=self.limits, prices=self.prices, llm=self.llm)


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force, and why."""

    name: str
    value: Any
    source: str
    """`default`, the file, or the variable it comes from."""


KINDS: Mapping[str, Kind] = {
    "database": kinds.text(f"a path in a folder of its own, or a {URL_KINDS} URL"),
    "repository": kinds.text("a name that every clone of this repository uses"),
    "durability": kinds.choice("full", "process"),
    "keep": kinds.whole(at_least=0),
    "lease_s": kinds.seconds(at_least=3, at_most=86_400),
    "space_warning": kinds.size(),
    "max_concurrency": kinds.whole(at_least=1),
    "gates": kinds.choice("stop", "wait", "reject"),
    "secrets": kinds.names(),
    "on_wait": kinds.arguments(),
    "on_end": kinds.arguments(),
    "log_limit": kinds.size(),
    "llm": kinds.table(LlmDefaults, "a table [llm] with base_url, key_name (of a variable), key_command (a list)"),
    "limits": kinds.table(
        dict[str, CallLimits],
        "tables as [limits.OPENAI_API_KEY] with slots, per_minute (whole numbers, 1 or more), per_day_usd, max_wait_s",
    ),
    "prices": kinds.table(
        dict[str, Price],
        'tables as [prices."gpt-x"] with input_per_million and output_per_million (and cached_per_million) in USD',
    ),
}


def load_settings(root: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force in `root`.

    WorkflowConfigurationError names the file or variable, the key, its value and what is allowed.
    """
    return Settings(**{one.name: one.value for one in _sound(root, environ)})


def wrong_settings(root: Path, environ: Mapping[str, str] | None = None) -> list[WorkflowConfigurationError]:
    """Everything that is wrong with the settings of `root`, each told as `load_settings` would tell it."""
    return [one for one in _collect_settings(root, environ) if isinstance(one, WorkflowConfigurationError)]


def explain_settings(root: Path, environ: Mapping[str, str] | None = None) -> tuple[Setting, ...]:
    """Each setting with its value and where it came from, in the order of `Settings`; a URL without its password."""
    given = {one.name: (one.value, one.source) for one in _sound(root, environ)}
    defaults = Settings()
    return tuple(
        Setting(name=name, value=without_password(value) if name == "database" and value else value, source=source)
        for name in KINDS
        for value, source in [given.get(name, (getattr(defaults, name), DEFAULT))]
    )


def variable_of(name: str) -> str:
    """The variable that sets it."""
    return VARIABLE if name == "database" else f"AGENTOS_{name.upper()}"


def _sound(root: Path, environ: Mapping[str, str] | None) -> list[Setting]:
    """What is set somewhere, weakest first, where all of it is allowed."""
    given = list(_collect_settings(root, environ))
    wrong = [one for one in given if isinstance(one, WorkflowConfigurationError)]
    if not wrong:
        return [one for one in given if isinstance(one, Setting)]
    first, more = wrong[0], len(wrong) - 1
    if not more:
        raise first
    step = f"{first.next_step}\n{more} more of the settings {'is' if more == 1 else 'are'} wrong: agentos doctor"
    raise WorkflowConfigurationError(first.message, next_step=step)


def _collect_settings(root: Path, environ: Mapping[str, str] | None) -> Iterator[Setting | WorkflowConfigurationError]:
    """What is set somewhere, weakest first, and in its place what is wrong with it."""
    try:
        file = read_settings_file(root)
    except WorkflowConfigurationError as error:
        file = None
        yield error
    if file is not None:
        for name, value in file.table.items():
            yield from _in_file(file, name, value)
    variables = os.environ if environ is None else environ
    for name in KINDS:
        text = variables.get(variable_of(name), "")
        if text.strip():
            yield from _in_variable(name, text)


def _in_file(file: SettingsFile, name: str, value: object) -> Iterator[Setting | WorkflowConfigurationError]:
    if name not in KINDS:
        import difflib  # for a name that is misspelt

        near = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(KINDS)}."
        yield WorkflowConfigurationError(
            f"{file.shown} has an unknown setting, {kinds.short_repr(name)}", next_step=hint
        )
        return
    read, faults = _read(name, value)
    if not faults:
        yield Setting(name=name, value=read, source=file.path.name)
    yield from (_wrong(name, f"`{name}{fault.key}` in {file.shown} {fault.what}") for fault in faults)


def _in_variable(name: str, text: str) -> Iterator[Setting | WorkflowConfigurationError]:
    variable = variable_of(name)
    read, faults = _read(name, KINDS[name].from_text(text))
    if not faults:
        yield Setting(name=name, value=read, source=variable)
    for fault in faults:
        what = f"is {kinds.short_repr(text)}" if fault.shows_value else fault.what  # as it was typed
        yield _wrong(name, f"{variable}{fault.key} {what}")


def _read(name: str, value: object) -> tuple[Any, list[Fault]]:
    """The value as it is allowed, or what is wrong with it."""
    try:
        return KINDS[name].read(value), []
    except ValueError:
        return None, list(KINDS[name].faults(value))


def _wrong(name: str, what: str) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(what, next_step=f"Allowed: {KINDS[name].allowed}.")

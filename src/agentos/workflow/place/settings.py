"""Settings of a repository: what runs here do unless a call or a flag says otherwise.

    the settings file  <  variables AGENTOS_<NAME>  <  flags and arguments            (the right one wins)

The file is `agentos.toml` at the root, or `[tool.agentos]` in pyproject.toml. It comes with the repository, so it is
read with care: a real file inside the repository, of sane size, in UTF-8. Where state lives is settled first and apart,
by `location`: `database` is only shown here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.excerpts import shorten
from agentos.store.backends import URL_KINDS, without_password
from agentos.store.port import LEASE_S
from agentos.tasks.cluster.cluster_settings import DaskSettings
from agentos.tasks.llm.model_settings import CallLimits, LlmDefaults, ModelSettings, Price
from agentos.tasks.process.sandbox_settings import SandboxPaths
from agentos.workflow.expiry.rules import Retention
from agentos.workflow.place import setting_kinds as kinds
from agentos.workflow.place.setting_kinds import Fault, Kind
from agentos.worktree.git import one_line

DEFAULT = "default"
DATABASE_VARIABLE = "AGENTOS_WORKFLOW_DB"
SETTINGS = "agentos.toml"
PYPROJECT = "pyproject.toml"
TABLE = "tool.agentos"

MAX_BYTES = 1 << 20
_CORRECT = "Correct that file."
_AWAY = "Move it out of the way."
_HEADER = re.compile(rb"""^\s*\[\s*["']?tool["']?\s*\.\s*["']?agentos""", re.MULTILINE)


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

    retention: Retention = Retention()
    """How long runs that have ended are kept; a worker deletes older ones. Not set: nothing is deleted."""
    sandbox: SandboxPaths = SandboxPaths()
    """What tasks with a `sandbox` may read, write and inherit beside the usual."""

    dask: DaskSettings = DaskSettings()
    """The Dask cluster that tasks with `runner: dask` run on."""

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
    "retention": kinds.table(
        Retention, 'a table [retention] with complete, failed, aborted (ages, as "30d") and keep_last (a whole number)'
    ),
    "sandbox": kinds.table(
        SandboxPaths, "a table [sandbox] with read and write (lists of paths from / or ~/), env (names of variables)"
    ),
    "dask": kinds.table(
        DaskSettings, "a table [dask] with scheduler (tls://host:port), ca, cert, key (files), patience_s (0 to 3600)"
    ),
}


def load_settings(root: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in force in `root`.

    WorkflowConfigurationError names the file or variable, the key, its value and what is allowed.
    """
    return Settings(**{one.name: one.value for one in _sound(root, environ)})


def wrong_settings(root: Path) -> list[WorkflowConfigurationError]:
    """Everything that is wrong with the settings of `root`, each told as `load_settings` would tell it."""
    return [one for one in _collect_settings(root, None) if isinstance(one, WorkflowConfigurationError)]


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
    return DATABASE_VARIABLE if name == "database" else f"AGENTOS_{name.upper()}"


def from_variable(name: str, environ: Mapping[str, str] | None = None) -> str:
    """What the user's variable of a setting says, as it was typed; empty where it is not set, or blank."""
    text = (os.environ if environ is None else environ).get(variable_of(name), "")
    return text if text.strip() else ""


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
    for name, kind in KINDS.items():
        if not (text := from_variable(name, environ)):
            continue
        read, faults = _read(name, kind.from_text(text))
        if not faults:
            yield Setting(name=name, value=read, source=variable_of(name))
        for fault in faults:
            what = f"is {shorten(repr(text))}" if fault.shows_value else fault.what  # as it was typed
            yield _wrong(name, f"{variable_of(name)}{fault.key} {what}")


def _in_file(file: SettingsFile, name: str, value: object) -> Iterator[Setting | WorkflowConfigurationError]:
    if name not in KINDS:
        import difflib  # for a name that is misspelt

        near = difflib.get_close_matches(name, KINDS, n=1)
        hint = f"Did you mean `{near[0]}`?" if near else f"There are: {', '.join(KINDS)}."
        yield WorkflowConfigurationError(f"{file.shown} has an unknown setting, {shorten(repr(name))}", next_step=hint)
        return
    read, faults = _read(name, value)
    if not faults:
        yield Setting(name=name, value=read, source=file.path.name)
    yield from (_wrong(name, f"`{name}{fault.key}` in {file.shown} {fault.what}") for fault in faults)


def _read(name: str, value: object) -> tuple[Any, list[Fault]]:
    """The value as it is allowed, or what is wrong with it."""
    try:
        return KINDS[name].read(value), []
    except ValueError:
        return None, list(KINDS[name].faults(value))


def _wrong(name: str, what: str) -> WorkflowConfigurationError:
    return WorkflowConfigurationError(what, next_step=f"Allowed: {KINDS[name].allowed}.")


# --- the file -----------------------------------------------------------------------------------------------------


class SettingsFile(NamedTuple):
    """What a repository says about us."""

    path: Path
    table: dict[str, Any]

    @property
    def shown(self) -> str:
        """The file for a message, with the table where it is not ours alone."""
        return f"[{TABLE}] in {one_line(self.path)}" if self.path.name == PYPROJECT else one_line(self.path)


def read_settings_file(root: Path) -> SettingsFile | None:
    """The settings file of `root`, if it has one. WorkflowConfigurationError where it cannot be trusted or read."""
    own, shared = root / SETTINGS, root / PYPROJECT
    table = _in_pyproject(shared)
    if table is None:
        return SettingsFile(own, _parse_toml(own)) if os.path.lexists(own) else None
    if os.path.lexists(own):
        raise WorkflowConfigurationError(
            f"both {one_line(own)} and [{TABLE}] in {one_line(shared)} hold settings",
            next_step="Keep one of them: move the settings into one file and delete the other's.",
        )
    if not isinstance(table, dict):
        raise WorkflowConfigurationError(
            f"{TABLE} in {one_line(shared)} is not a table but {table!r}",
            next_step=f"Write [{TABLE}] above the settings.",
        )
    return SettingsFile(shared, table)


def _in_pyproject(path: Path) -> object:
    """What stands there under `tool.agentos`, or None. The file is the project's: without us in it, its faults are not
    ours to tell."""
    contents = _contents(path, ours=False)
    if b"agentos" not in contents:
        return None
    try:
        tool = _parse_toml(path).get("tool")
    except WorkflowConfigurationError:
        if _HEADER.search(contents):
            raise
        return None
    return tool.get("agentos") if isinstance(tool, dict) else None


def _parse_toml(path: Path) -> dict[str, Any]:
    import tomllib  # here, since most repositories have no such file and every process would pay for it

    try:
        return tomllib.loads(_contents(path, ours=True).decode())
    except (ValueError, RecursionError) as error:  # errors of TOML and of UTF-8 are ValueErrors
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error


def _contents(path: Path, *, ours: bool) -> bytes:
    """The bytes of the file; none where there is no file, or one of somebody else's that is of no use."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path) and ours:
            raise WorkflowConfigurationError(f"{one_line(path)} is a link to nothing", next_step=_AWAY) from None
        return b""
    except OSError as error:
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error
    if not ours and (not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES):
        return b""
    if not stat.S_ISREG(found.st_mode):  # reading a pipe would wait for ever
        raise WorkflowConfigurationError(f"{one_line(path)} is not a file", next_step=_AWAY)
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise WorkflowConfigurationError(
            f"{one_line(path)} is a link to a file outside the repository, {one_line(os.path.realpath(path))}",
            next_step="Put the settings themselves there.",
        )
    if found.st_size > MAX_BYTES:
        raise WorkflowConfigurationError(
            f"{one_line(path)} holds {found.st_size} bytes, more than settings ever need ({MAX_BYTES})",
            next_step=_AWAY,
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkflowConfigurationError(f"{one_line(path)} cannot be read: {error}", next_step=_CORRECT) from error

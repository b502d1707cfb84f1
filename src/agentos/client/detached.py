"""Start and resume with a driver that outlives the caller, and is no descendant of it.

The caller starts this module as a process in a session of its own, which forks once and ends: the driver then belongs
to the system's first process, or to another one that takes orphans, never to the caller. It carries no attempt's mark,
and prints to a private file. Whether it holds the lease, or why not, it says once, through a pipe.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import msgspec

import agentos
from agentos import exceptions, typed
from agentos.exceptions import AgentosError, RunRefusedError
from agentos.ids import new_id, short_id
from agentos.tasks.process.ancestors import leave_orphans
from agentos.values import decode_value, encode_value

if TYPE_CHECKING:
    from agentos.client.definitions import CheckedFile
    from agentos.client.places import FoundRun, Place
    from agentos.client.process import Shield
    from agentos.client.runs import Durability, Previewed
    from agentos.dag.define.workflow import Workflow
    from agentos.machine.board import GatePolicy
    from agentos.workflow.files.decisions import FilesChoice

LOG = "driver.log"
"""Beside the logs of the run's tasks; mode 0600. Each driver adds to it; it goes with the run."""
_OF_AN_ATTEMPT = ("ATTEMPT_ID", "ROOT", "WORKTREE", "WORKFLOW_ID", "TASK_ID", "IDEMPOTENCY_KEY", "OUTPUT")
_starting = Lock()
LOOK_S = 300
"""What takes longer to import is no workflow: something serves, or waits, in it."""


class Detached(msgspec.Struct, frozen=True, kw_only=True):
    """A run that another process drives from now on."""

    workflow_id: str
    pid: int | None
    """Of the driver. None: nothing was left to do."""
    log: Path
    """What the driver prints, and what Python functions print in it."""


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver is to do."""

    root: str
    database: str
    named: bool
    settings: dict[str, Any]
    """Arguments of `resolve_drive_options`."""
    workflow_id: str
    file: str = ""
    """Start: as somebody would type it."""
    source: str = ""
    """Start: where a workflow that was given itself was defined, as a run stores it."""
    params: bytes = b"{}"
    labels: tuple[str, ...] = ()
    goes_on: bool = True
    """Start: whether a run of this id that has begun is resumed."""
    target: str | None = None
    """Resume: the run or checkpoint."""
    rerun: frozenset[str] = frozenset()
    strict: bool = False
    as_stored: bool = False
    files: Literal["ask", "restore", "keep", "checkpoint"] = "ask"
    look_s: int = 0
    """Only look, for so many seconds at most. Start: tell what is wrong with the file. Resume: what it would do."""
    fork: str = ""
    """The checkpoint that a new run is to begin from."""
    pairs: tuple[str, ...] = ()
    """Fork: parameters that are others, as somebody would type them."""


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says once: it drives, there is nothing to do, or why it cannot."""

    pid: int | None = None
    error: str = ""
    message: str = ""
    next_step: str = ""
    more: dict[str, Any] = {}
    """Further fields of the error, as plain values."""
    foreseen: dict[str, msgspec.Raw] = {}
    """Where it was only to look: the fields of what it found."""


def start_detached(
    workflow: Workflow | str,
    params: Mapping[str, Any] | None = None,
    workflow_id: str | None = None,
    *,
    repo: str | Path | None = None,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    labels: Iterable[str] = (),
    goes_on: bool = True,
) -> Detached:
    """Begin a run as `run` does, driven by a process that outlives this one. Returns once that holds the lease.

    `workflow` is a file, a name in `workflows/`, or one that was defined in a file: the driver loads it itself. With
    the id of a run that exists, of the same definition and parameters, that run is resumed; unless it `goes_on`, one
    that has begun is left as it stands. What keeps the driver from driving is raised here.
    """
    from agentos.workflow.define.python_modules import refuse_while_loading
    from agentos.workflow.define.workflow_source import source_of, workflow_file
    from agentos.workflow.place.place import find_place, refuse_bad_id

    refuse_while_loading("start_detached")
    refuse_bad_id(workflow_id)
    place = find_place(repo)
    given: dict[str, Any] = {}
    if isinstance(workflow, str):
        path, name = workflow_file(workflow, place.root)
        given["file"] = f"{path.absolute()}:{name}" if name else str(path.absolute())
    else:
        given["source"] = source_of(workflow, place.root)
        if not given["source"]:
            raise RunRefusedError(
                f"workflow {workflow.name!r} was not defined in a file, so that no other process can drive it",
                next_step="Define it in a file, or use `run`.",
            )
    given |= {"params": encode_value(dict(params or {})), "labels": tuple(labels), "goes_on": goes_on}
    settings = {"gates": gates, "durability": durability, "keep": keep}
    return _start_driver(place, settings, workflow_id=workflow_id or new_id(), **given)


def resume_detached(
    target: FoundRun | str | None = None,
    *,
    repo: str | Path | None = None,
    rerun: Iterable[str] = (),
    strict: bool = False,
    as_stored: bool = False,
    gates: GatePolicy | None = None,
    durability: Durability | None = None,
    keep: int | None = None,
    files: FilesChoice = "ask",
) -> Detached:
    """Go on with a run as `resume` does, driven by a process that outlives this one. Returns once that holds the lease.

    One that `find_run` found in another worktree is resumed there. What keeps the driver from driving is raised here:
    LeaseHeldError, FilesChangedError, … Of a complete run nothing is done.
    """
    from agentos.client.places import FoundRun
    from agentos.workflow.place.place import find_place
    from agentos.workflow.place.run_search import reading
    from agentos.workflow.start.resume import find_target

    if isinstance(target, FoundRun):
        place, target = target.place, target.record.workflow_id
    else:
        place = find_place(repo)
    with reading(place) as store:
        workflow_id = find_target(store, place, target)[0].workflow_id
    return _start_driver(
        place,
        {"gates": gates, "durability": durability, "keep": keep},
        workflow_id=workflow_id,
        target=target or workflow_id,
        rerun=frozenset(rerun),
        strict=strict,
        as_stored=as_stored,
        files=files,
    )


def fork_detached(
    run: FoundRun, checkpoint: str = "", *, workflow_id: str | None = None, params: Iterable[str] = ()
) -> Detached:
    """Begin a new run from a checkpoint of this one, as `fork` does, driven by a process that outlives this one.

    Without `checkpoint` the newest is meant. `params` are those that are others than its parent's, as NAME=VALUE.
    Returns once the driver holds the lease; what keeps it from driving is raised here.
    """
    from agentos.workflow.place.place import refuse_bad_id
    from agentos.workflow.place.run_search import reading
    from agentos.workflow.start.resume import find_target

    refuse_bad_id(workflow_id)
    own = run.record.workflow_id
    begin = checkpoint or own
    with reading(run.place) as store:
        owner = find_target(store, run.place, begin)[0].workflow_id
    if owner != own:
        raise RunRefusedError(
            f"{begin!r} belongs to run {owner}, not to {own}",
            next_step=f"Its checkpoints: agentos checkpoints {shlex.quote(short_id(own))}",
        )
    return _start_driver(run.place, {}, workflow_id=workflow_id or new_id(), fork=begin, pairs=tuple(params))


def preview_detached(
    run: FoundRun, *, rerun: Iterable[str] = (), as_stored: bool = False, files: FilesChoice = "ask"
) -> Previewed:
    """What `resume_detached` would do, as `preview_resume` tells it, however long this process has been running.

    Nothing is imported in it: a workflow in a Python file is read by another process, as it is now.
    """
    from agentos.client.files import FilesForeseen
    from agentos.client.places import RunRecord
    from agentos.client.runs import (
        Comparison,
        Previewed,
        ResumeOptions,
        ResumePlan,
        preview_resume,
        resolve_drive_options,
    )
    from agentos.workflow.define.workflow_source import YAML, source_files

    if as_stored or "".join(source_files(run.record.source)).endswith(YAML):
        return preview_resume(
            run.record.workflow_id,
            place=run.place,
            choices=ResumeOptions(rerun=frozenset(rerun)),
            as_stored=as_stored,
            options=resolve_drive_options(run.place.root)[1],
            files=files,
        )
    request = _Request(
        root=str(run.place.root),
        database=run.place.database,
        named=run.place.named,
        settings={},
        workflow_id=run.record.workflow_id,
        target=run.record.workflow_id,
        rerun=frozenset(rerun),
        as_stored=as_stored,
        files=files,
        look_s=LOOK_S,
    )
    fields = _ask_to_look(request, "what a resume would do could not be found out", "agentos resume --dry-run")
    return Previewed(
        record=typed.decode(fields["record"], RunRecord),
        plan=typed.decode(fields["plan"], ResumePlan),
        files=typed.decode(fields["files"], FilesForeseen) if fields["files"] != b"null" else None,
        compared=typed.decode(fields["compared"], Comparison),
    )


def check_detached(workflow: str, repo: str | Path | None = None, *, look_s: int = LOOK_S) -> CheckedFile:
    """What `check` tells of a workflow, however long this process has been running: nothing is imported in it.

    AgentosError where the file is not imported within `look_s`.
    """
    from agentos.client.definitions import CheckedFile
    from agentos.client.places import find_root

    root = str(find_root(repo))
    request = _Request(root=root, database="", named=False, settings={}, workflow_id="", file=workflow, look_s=look_s)
    step = f"agentos check {shlex.quote(workflow)}"
    fields = _ask_to_look(request, f"what is wrong with {workflow!r} could not be found out", step)
    return typed.convert({name: msgspec.json.decode(value) for name, value in fields.items()}, CheckedFile)


def _ask_to_look(request: _Request, failed: str, instead: str) -> dict[str, bytes]:
    """The fields of what was found, each as JSON."""
    with open(os.devnull, "wb") as nowhere:
        said = _ask_driver(msgspec.json.encode(request), nowhere.fileno(), Path(request.root))
    if not said:
        why = f"the process that looked died, or took longer than {request.look_s} s"
        raise AgentosError(f"{failed}: {why}", next_step=f"Try: {instead}")
    report = typed.decode(said, _Report)
    if report.error:
        raise _error_from(report)
    return {name: bytes(value) for name, value in report.foreseen.items()}


def _start_driver(place: Place, settings: dict[str, Any], *, workflow_id: str, **asked: Any) -> Detached:
    from agentos.workflow.drive.log_writer import LogWriter
    from agentos.workflow.drive.logs import refuse_foreign, run_folder

    request = _Request(
        root=str(place.root),
        database=place.database,
        named=place.named,
        settings=settings,
        workflow_id=workflow_id,
        **asked,
    )
    refuse_foreign(place.kept_beside, workflow_id)
    folder = run_folder(place.kept_beside, workflow_id)
    assert folder is not None  # it is beside a file
    log = folder / LOG
    is_new = not log.exists()
    if is_new:
        LogWriter(folder.parent, workflow_id).replace(LOG, ())
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        said = _ask_driver(msgspec.json.encode(request), file, place.root)
    finally:
        os.close(file)
    report = typed.decode(said, _Report) if said else None
    if report is not None and not report.error:
        return Detached(workflow_id=workflow_id, pid=report.pid, log=log)
    if is_new and not log.stat().st_size:  # nothing began, and nothing was said but the error
        with suppress(OSError):
            log.unlink()
            folder.rmdir()
    if report is None:
        raise AgentosError(
            "the driver ended before it could drive the run", next_step=f"What it printed: cat {shlex.quote(str(log))}"
        )
    raise _error_from(report)


def _ask_driver(request: bytes, log: int, root: Path) -> bytes:
    """What the driver says: a report, or nothing where it died."""
    environment = {
        name: value for name, value in os.environ.items() if name.removeprefix("AGENTOS_") not in _OF_AN_ATTEMPT
    }
    # The folder that this very package was imported from: a checkout need not be installed.
    paths = (str(Path(agentos.__file__).parents[1]), environment.get("PYTHONPATH"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with _starting, leave_orphans():
        first = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentos.client.detached"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=root,
            env=environment,
            start_new_session=True,
        )
        assert first.stdin is not None
        assert first.stdout is not None
        with suppress(BrokenPipeError), first.stdin as sending:
            sending.write(request)
        first.wait()
    with first.stdout as hearing:
        return hearing.read()


def _error_from(report: _Report) -> AgentosError:
    """The driver's error, of the same kind and with the same fields."""
    kind = getattr(exceptions, report.error, AgentosError)
    error: AgentosError = kind.__new__(kind)
    AgentosError.__init__(error, report.message, next_step=report.next_step)
    for name, value in report.more.items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error


# --- in the driver --------------------------------------------------------------------------------------------------


def main() -> None:
    """Read what is asked, leave the caller behind, and drive."""
    asked = typed.decode(sys.stdin.buffer.read(), _Request)
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.alarm(asked.look_s)  # 0: none
    telling = os.dup(1)  # no child inherits it: the caller waits until it is closed
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def tell(report: _Report) -> bool:
        nonlocal telling
        if telling < 0:
            return False
        with suppress(OSError), open(telling, "wb") as saying:  # the caller is gone: that is what this process is for
            saying.write(msgspec.json.encode(report))
        telling = -1
        return True

    from agentos.client.process import mark_agent, shield_output

    # Who asked for it may be an agent, and importing a workflow's file runs what stands in it: it answers no gate.
    with shield_output() as shield, mark_agent(f"driver {os.getpid()}"):
        try:
            _drive(asked, tell, shield)
        except AgentosError as error:
            fields = {name: value for name, value in vars(error).items() if name not in ("message", "next_step")}
            more = {name: [*map(str, one)] if isinstance(one, tuple) else str(one) for name, one in fields.items()}
            report = _Report(error=type(error).__name__, message=error.message, next_step=error.next_step, more=more)
            if not tell(report):
                sys.stderr.write(f"{error}\n")
            sys.exit(1)
        except Exception:  # noqa: BLE001 - the boundary of this process; what it quotes is masked here
            sys.stderr.write(traceback.format_exc())
            sys.exit(1)


def _drive(asked: _Request, tell: Callable[[_Report], bool], shield: Shield) -> None:
    import asyncio

    from agentos.client.definitions import check, typed_params
    from agentos.client.process import StopSignals
    from agentos.client.runs import (
        ResumeOptions,
        begin_run,
        drive,
        fork_run,
        preview_resume,
        resolve_drive_options,
        resume_run,
    )
    from agentos.workflow.define.workflow_source import find_workflow, load_workflow

    if asked.look_s and asked.file:
        tell(_preview_report(check(asked.file, asked.root)))
        return
    place, options = resolve_drive_options(asked.root, **asked.settings)
    place = msgspec.structs.replace(place, database=asked.database, named=asked.named)
    options = msgspec.structs.replace(options, files=asked.files)
    choices = ResumeOptions(rerun=asked.rerun, strict=asked.strict)
    if asked.look_s:
        found = preview_resume(
            asked.target, place=place, choices=choices, as_stored=asked.as_stored, options=options, files=asked.files
        )
        tell(_preview_report(found))
        return

    def prepare() -> Any:
        if asked.fork:
            changed = typed_params(asked.pairs)
            return fork_run(place, asked.fork, workflow_id=asked.workflow_id, params=changed, options=options)
        if asked.target is not None:
            return resume_run(place, asked.target, as_stored=asked.as_stored, choices=choices, options=options)
        root = place.root
        workflow = load_workflow(asked.source, root) if asked.source else find_workflow(asked.file, root)
        params = decode_value(asked.params)
        return begin_run(
            place, workflow, params, asked.workflow_id, options, labels=asked.labels, goes_on=asked.goes_on
        )

    async def go() -> None:
        stopping = StopSignals(lambda text: None)

        def on_start(started: Any) -> None:
            stopping.attach(started)
            shield.masker = started.masker
            tell(_Report(pid=os.getpid()))

        with stopping.catch_signals():
            try:
                await drive(place, prepare, started=on_start, adopts=True, stands_in_line=False)
            except asyncio.CancelledError:
                if stopping.received is None:
                    raise
        tell(_Report())  # of a run that needs no drive

    asyncio.run(go())


def _preview_report(found: msgspec.Struct) -> _Report:
    fields = msgspec.structs.asdict(found).items()
    return _Report(foreseen={name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields})


if __name__ == "__main__":
    main()

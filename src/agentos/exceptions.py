"""Every exception AgentOS raises on purpose, sorted by what the caller can do about it.

    AgentosError
    |-- WorkflowDefinitionError         fix the workflow: all findings at once
    |   `-- WorkflowFileError           its file cannot be read or imported
    |-- ExpressionError                 fix a reference or condition: it cannot be read
    |-- ValueEncodingError              fix the task: its result cannot be written down
    |-- WorkflowConfigurationError      fix the place (also a RuntimeError)
    |   |-- ForeignDatabaseError        the file is not a database of ours
    |   `-- UntrustedSettingsError      say whether you trust what the settings reach: agentos trust
    |-- RunRefusedError                 ask for something else (a fork, another id, no --strict)
    |   `-- CommandRefusedError         this command does not fit this run now
    |-- RunFailedError                  a run failed or was aborted: its `result` says what went wrong
    |-- NotFoundError                   give another id
    |   |-- CheckpointNotFoundError
    |   |-- GraphCheckpointGoneError    LangGraph goes on from a checkpoint that was deleted meanwhile
    |   |-- RunNotFoundError
    |   |-- SnapshotNotFoundError
    |   `-- WorkflowNotFoundError       no file of this name
    |-- IntegrityError                  do not trust this record
    |   |-- CheckpointCorruptedError    a stored row is damaged
    |   |-- StateInvariantError         a state contradicts itself
    |   |-- DatabaseGoneError           removed, replaced or cut short while it was in use
    |   `-- NewerSchemaError            written by a newer AgentOS
    |-- CheckpointCutError              a checkpoint could not be written while the journal works
    |-- SnapshotError                   the worktree's files could not be captured or put back
    |   |-- NothingToCaptureError       no repository here, or git too old: the run goes on without snapshots
    |   |-- GitError                    a git command failed, or took too long
    |   |-- SnapshotRefusedError        too much to capture, or a place that is never captured
    |   `-- RestoreError                files could not be put back, or not all of them
    |       `-- FilesMovedError         what was to be written over is no longer what it was
    |-- FilesChangedError               say what to do with files: restore or keep
    |-- TryAgainError                   the same command may succeed later
    |   |-- LeaseHeldError              another process drives this run
    |   |-- QueueFullError              as many runs of its kind are driven as may be
    |   |-- LeaseLostError              another process took this run over
    |   |-- WorktreeBusyError           another process captures or puts back files here
    |   |-- StoreUnavailableError       the journal cannot be read or written right now
    |   |-- ClusterUnavailableError     the cluster that tasks are to run on cannot be reached, or has no workers
    |   `-- CoolingDownError            no calls with this credential for now: rate limit, or a day's money
    `-- AttemptError                    what an attempt can end with; stored as data
        |-- TaskTimeoutError
        |-- TaskCancelledError
        |-- StepsChangedError           a function asked for other steps than before
        |-- AttemptLostError            a worker, the network or the scheduler of a cluster went away under it
        |-- OtherCodeError              a worker of a cluster has another version of the task's function
        |-- ShellCommandFailed
        |-- ModelCallError              a model was asked, and there is no answer that can be used
        |-- AgentFailed                 an agent did not do what it was asked to
        |-- EvaluationError             a reference or condition has no value here
        `-- GateRejected

Each carries `next_step`: one sentence that says what to type or change.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from agentos.ids import short_id

ModelTrouble = Literal["auth", "rate", "server", "unreachable", "bad_input", "timeout", "cut_off", "garbage", "invalid"]


_NAMED = 10


class AgentosError(Exception):
    """Base of everything raised on purpose. `str(error)` is the full text, next step included."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.message}\n{self.next_step}" if self.next_step else self.message


class WorkflowDefinitionError(AgentosError):
    """The workflow cannot be planned. `findings` holds every problem, not only the first."""

    def __init__(self, findings: tuple[object, ...], *, name: str = "workflow", next_step: str = "") -> None:
        self.findings = findings
        lines = "\n".join(f"  - {finding}" for finding in findings)
        count = "1 problem" if len(findings) == 1 else f"{len(findings)} problems"
        super().__init__(
            f"{name!r} has {count}:\n{lines}",
            next_step=next_step or "Nothing was run; fix the definition and try again.",
        )


class WorkflowFileError(WorkflowDefinitionError):
    """The file a workflow stands in cannot be used; `path` names it. Nothing was touched."""

    def __init__(self, path: object, why: str, *, next_step: str = "Nothing was touched; mend the file.") -> None:
        AgentosError.__init__(self, f"{path}: {why}", next_step=next_step)
        self.path = str(path)
        self.findings = (self.message,)


class ExpressionError(AgentosError):
    """An expression cannot be read; `position` is where in `text`, counted from 0."""

    def __init__(self, text: str, position: int, why: str) -> None:
        self.text = text
        self.position = position
        shown = text if len(text) <= 80 else f"…{text[max(0, position - 40) : position + 40]}…"
        super().__init__(f"{why} at character {position + 1} of {shown!r}")


class ValueEncodingError(AgentosError):
    """A value has no defined stored form; `path` says where inside it (`$.items[3]`)."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(
            f"the value at {path} cannot be stored: {why}",
            next_step="Return JSON values, bytes, dates, decimals, paths, sets, enums, dataclasses, msgspec or "
            "pydantic objects, or say how its class is stored: agentos.register_codec.",
        )


class WorkflowConfigurationError(AgentosError, RuntimeError):
    """Where state lives cannot be settled, or that place cannot be used. Nothing was written."""


class ForeignDatabaseError(WorkflowConfigurationError):
    """The file exists and belongs to some other program; it was left as it is."""


class UntrustedSettingsError(WorkflowConfigurationError):
    """Settings of this repository reach out or run something, and the user has not accepted them. Nothing was done."""


class RunRefusedError(AgentosError):
    """What was asked does not fit the run as it is; the run is unchanged."""


class CommandRefusedError(RunRefusedError):
    """A command is malformed, or does not fit the run now."""


class RunFailedError(AgentosError):
    """A run that was waited for has failed, or was aborted; `result` (a RunResult) is how it stands.

    Where a task's own code raised, the traceback is in the notes.
    """

    def __init__(self, result: Any, failures: Iterable[tuple[str, str, str]], *, next_step: str) -> None:
        """`failures` are id, error and traceback of each task."""
        told = list(failures)
        self.result = result
        lines = [f"\n  {task_id}: {error}" for task_id, error, _ in told[:_NAMED]]
        more = f"\n  and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
        was = {"failed": "failed", "aborted": "was aborted"}.get(result.status, result.status)
        super().__init__(
            f"run {result.workflow_id} {was}{':' if told else ''}{''.join(lines)}{more}", next_step=next_step
        )
        for task_id, _, traceback in told[:_NAMED]:
            if traceback:
                self.add_note(f"\nIn {task_id}:\n{traceback.rstrip()}")


class NotFoundError(AgentosError):
    """No record has this id."""


def _short(given: str) -> str:
    """An id as somebody gave it, which may be anything, for one line of a message."""
    return repr(given if len(given) <= 100 else f"{given[:99]}…")


class CheckpointNotFoundError(NotFoundError):
    def __init__(self, checkpoint_id: str, *, among: str = "checkpoint") -> None:
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"no {among} {_short(checkpoint_id)}",
            next_step="It may have been pruned: `agentos list` shows runs, `agentos checkpoints RUN` what a run keeps.",
        )


class GraphCheckpointGoneError(NotFoundError):
    """A checkpoint of LangGraph was to follow one that is not there: its thread was deleted or pruned meanwhile.
    Nothing was stored."""

    def __init__(self, thread_id: str, checkpoint_id: str) -> None:
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        super().__init__(
            f"thread {_short(thread_id)} has no checkpoint {_short(checkpoint_id)} (any more) to go on from",
            next_step="It was deleted or pruned meanwhile. Begin anew, or go on from one that the saver lists.",
        )


class RunNotFoundError(NotFoundError):
    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        super().__init__(
            f"no run {_short(workflow_id)} here", next_step="`agentos list` shows the runs of this worktree."
        )


class SnapshotNotFoundError(NotFoundError):
    """The private store has no whole snapshot of this id; `why` says what is missing of it."""

    def __init__(self, snapshot_id: str, why: str = "it is not in the store") -> None:
        self.snapshot_id = snapshot_id
        self.why = why
        super().__init__(
            f"no snapshot {snapshot_id!r}: {why}",
            next_step="It may have been pruned, or its objects were the repository's own and are gone there: "
            "choose another checkpoint.",
        )


class WorkflowNotFoundError(NotFoundError):
    """No workflow of this name or path."""


class IntegrityError(AgentosError):
    """A record cannot be trusted. Nothing was deleted or repaired."""


class CheckpointCorruptedError(IntegrityError):
    """A stored row is damaged; `what` names the row."""

    def __init__(self, what: str, why: str, *, next_step: str = "") -> None:
        self.what = what
        super().__init__(
            f"{what} is damaged: {why}",
            next_step=next_step
            or "Nothing was changed. `agentos doctor --deep` tells from where a run can go on, "
            "`agentos doctor --set-aside` moves the damaged file away.",
        )


class StateInvariantError(IntegrityError):
    """A workflow state contradicts itself; the old state stays valid."""


class DatabaseGoneError(IntegrityError):
    """The database was removed, replaced or cut short while it was in use, and cannot be put back soundly."""


class NewerSchemaError(IntegrityError):
    """The database was written by a newer AgentOS; it was not touched."""


class CheckpointCutError(AgentosError):
    """A checkpoint's row could not be written, though its events could. Nothing of the batch was written."""


class SnapshotError(AgentosError):
    """The files of a worktree could not be captured, merged or put back. What the user has was not changed."""


class NothingToCaptureError(SnapshotError):
    """There is no worktree here that could be captured, or not by this git: a lasting condition, not a failure."""


class GitError(SnapshotError):
    """A git command ended with `status` (None: it was stopped after its time); `said` is its last word on it."""

    def __init__(self, argv: tuple[str, ...], status: int | None, said: str) -> None:
        self.argv = argv
        self.status = status
        self.said = said
        how = "took too long and was stopped" if status is None else f"ended with {status}"
        super().__init__(
            f"git {' '.join(argv[:3])} {how}: {said or 'it said nothing'}",
            next_step="See whether `git status` works in this worktree, and whether the disk is full.",
        )


class SnapshotRefusedError(SnapshotError):
    """The worktree is not captured as it is: it is too much (`limit` names which), or not a project's folder."""

    def __init__(self, message: str, *, limit: str, next_step: str) -> None:
        self.limit = limit
        super().__init__(message, next_step=next_step)


class RestoreError(SnapshotError):
    """Files could not be put back. `undo` names the snapshot of what was there before; empty: nothing was changed."""

    def __init__(self, message: str, *, undo: str = "", next_step: str = "") -> None:
        self.undo = undo
        super().__init__(message, next_step=next_step)


class FilesMovedError(RestoreError):
    """Changes were to be made to files that are no longer what they were. Nothing was changed."""


class FilesChangedError(AgentosError):
    """Files were to be put back, and somebody seems to have changed them since: nothing was touched or run."""

    def __init__(self, workflow_id: str, why: str, paths: tuple[str, ...]) -> None:
        self.workflow_id = workflow_id
        self.paths = paths
        listed = "".join(f"\n  {path}" for path in paths[:20]) + ("\n  …" if len(paths) > 20 else "")
        super().__init__(
            f"a task of run {workflow_id} was interrupted while it changed files, and {why}:{listed}\n"
            "Nothing was touched or run.",
            next_step=f"`agentos resume {short_id(workflow_id)} --files restore` puts back what the task began with "
            f"(what is there now is kept for `agentos undo`); `--files keep` runs it on the files as they are.",
        )


class TryAgainError(AgentosError):
    """Nothing is wrong with the request; somebody or something is in the way for now."""


class LeaseHeldError(TryAgainError):
    """Another process drives this run; `holder` describes it."""

    def __init__(self, workflow_id: str, holder: str) -> None:
        self.workflow_id = workflow_id
        self.holder = holder
        super().__init__(
            f"run {workflow_id} is being driven by {holder}",
            next_step="Wait for it to end, or send it a command (pause, abort) instead.",
        )


class QueueFullError(TryAgainError):
    """As many runs of this key are driven as its limit allows; `holders` are their ids, each with its driver.

    `waits`: the workflow has such a run wait for its turn.
    """

    waits = False

    def __init__(self, key: str, limit: int, holders: Iterable[tuple[str, str]]) -> None:
        self.key, self.limit, self.holders = key, limit, tuple(holders)
        runs = "1 run" if limit == 1 else f"{limit} runs"
        told = ", ".join(f"{run} ({who})" if who else run for run, who in self.holders[:3])
        more = ", …" if len(self.holders) > 3 else ""
        super().__init__(
            f"{key!r} allows {runs} at a time: {told}{more}",
            next_step="Wait for it to end, or submit the run: a worker takes it when it is its turn.",
        )


class LeaseLostError(TryAgainError):
    """This process no longer has the right to drive the run; what it tried to write was not written."""

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        super().__init__(
            f"another process has taken run {workflow_id} over",
            next_step="Nothing more is written from here; follow the run where it is driven now.",
        )


class WorktreeBusyError(TryAgainError):
    """Another process is capturing or putting back files of this worktree, or tidying the store."""


class StoreUnavailableError(TryAgainError):
    """The journal cannot be read or written (full disk, read-only file, locked too long)."""


class ClusterUnavailableError(TryAgainError):
    """The cluster that tasks are to run on cannot be reached now, or has no worker for them. The run is put off."""


class CoolingDownError(TryAgainError):
    """Calls with a credential have to wait for longer than anybody should: `for_s` seconds from now."""

    def __init__(self, credential: str, why: str, for_s: float) -> None:
        self.credential = credential
        self.for_s = for_s
        super().__init__(
            f"no calls with {credential} for another {for_s:.0f} s: {why}",
            next_step="Resume the run when that is over, or raise the limit in agentos.toml ([limits]).",
        )


class AttemptError(AgentosError):
    """Ends an attempt. Stored in the journal as type, text and traceback."""


class TaskTimeoutError(AttemptError):
    """The attempt ran longer than its `timeout_s`."""


class StepsChangedError(AttemptError):
    """A function asks for another step than it did in an earlier attempt: which of them was made cannot be guessed."""


class AttemptLostError(AttemptError):
    """The attempt went down with the worker, the network or the scheduler it was on: no failure of its own."""


class OtherCodeError(AttemptError):
    """Where the attempt was to be performed, the task's function is another one than where the run is driven."""


class TaskCancelledError(AttemptError):
    """The attempt was cancelled because the run was aborted or stopped."""


class ShellCommandFailed(AttemptError):
    """The command ended with a status other than 0; `exit_code` holds it."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class ModelCallError(AttemptError):
    """A model was asked and gave no answer that can be used. `kind` says whose matter it is:

    `auth` (key, permissions, credit), `rate` (429), `server` (5xx), `unreachable` (no connection), `bad_input` (the
    request), `timeout`, `cut_off` (the answer broke off), `garbage` (no answer of this protocol, or too long),
    `invalid` (an answer, but not of the schema asked for).
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ModelTrouble,
        status: int | None = None,
        retry_after_s: float | None = None,
        retryable: bool = True,
        next_step: str = "",
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        """How long the server wants us to wait; None where it does not say."""
        self.retryable = retryable
        """Whether the same call may succeed later."""


class AgentFailed(AttemptError):
    """An agent did not do what it was asked to; `outcome` says how, in a word that is the same for every agent."""

    def __init__(self, message: str, *, outcome: str, next_step: str = "") -> None:
        super().__init__(message, next_step=next_step)
        self.outcome = outcome


class EvaluationError(AttemptError):
    """A reference, condition or key has no value here; the task that holds it fails with this."""


class GateRejected(AttemptError):
    """A human (or the gate's timeout) said no to what the task would have done."""

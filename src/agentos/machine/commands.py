"""What somebody may ask of a run. Each command has one shape, checked before it is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from agentos import typed
from agentos.exceptions import CommandRefusedError

TaskMappings = Mapping[str, Mapping[str, Any]]
"""Tasks by id, in the form of a workflow file."""


class _Command(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="type"
):
    reason: str = ""


class Continue(_Command, frozen=True, kw_only=True, tag="continue"):
    """Pass the decision point (per_layer, on_error) that is open."""


class Abort(_Command, frozen=True, kw_only=True, tag="abort"):
    """End the run now: running tasks are cancelled. Final."""


class Pause(_Command, frozen=True, kw_only=True, tag="pause"):
    """Let running tasks finish, start no others, and stop. `resume` goes on."""


class ApprovalResponse(_Command, frozen=True, kw_only=True, tag="approval_response"):
    """Answer a gate. It must name one that is open."""

    gate_id: str
    approved: bool
    choice: str = ""
    """For a gate with choices, which an approval must name; one about an interrupted task has `EFFECT_ANSWERS`."""
    answer: Literal["", "rerun", "happened"] = ""
    """As earlier versions said `run-again` and `it-ran`."""
    output: Any = None
    """With `it-ran`: what the task gave; of a command the text that it printed. Of a merge: the versions chosen, or
    `agent:NAME`."""
    signature: str = ""
    """An SSH signature over `signed_text` of this answer, armored. At a gate with `by: signed` a yes needs one."""


IT_RAN, DID_NOT_RUN, RUN_AGAIN = EFFECT_ANSWERS = ("it-ran", "did-not-run", "run-again")
"""What became of a task that was interrupted: it took effect, and is not run; it did not, and starts; nobody knows, or
it did, and it is repeated all the same."""


TRY_NOW, FAIL_NOW = "try-now", "fail"
LIMIT_ANSWERS = (TRY_NOW, "wait-1h", "wait-5h", FAIL_NOW)
"""What becomes of an agent at a limit of which nobody knows when it is over; `wait-` takes any number of m, h or d."""
_WAIT = re.compile(r"wait-(\d{1,4})([mhd])")


def chosen_wait_s(choice: str) -> float | None:
    """How long a choice says to wait; None where it says something else."""
    found = _WAIT.fullmatch(choice)
    return float(found[1]) * {"m": 60, "h": 3_600, "d": 86_400}[found[2]] if found else None


class InjectTasks(_Command, frozen=True, kw_only=True, tag="inject_tasks"):
    """Add tasks. They always run, by readiness, wherever the run stands."""

    tasks: TaskMappings


class SkipLayer(_Command, frozen=True, kw_only=True, tag="skip_layer"):
    """Skip every task of a layer that has not begun."""

    layer: int


class ModifyArgs(_Command, frozen=True, kw_only=True, tag="modify_args"):
    """Change inputs of a task that has not started."""

    task_id: str
    updates: Mapping[str, Any]


class ReplanDag(_Command, frozen=True, kw_only=True, tag="replan_dag"):
    """Add tasks, replace or remove tasks that have not started."""

    tasks: TaskMappings = {}
    remove: tuple[str, ...] = ()


class Rollback(_Command, frozen=True, kw_only=True, tag="rollback"):
    """Go on from an older checkpoint of this run, in a new epoch."""

    checkpoint_id: str


Command = Continue | Abort | Pause | ApprovalResponse | InjectTasks | SkipLayer | ModifyArgs | ReplanDag | Rollback

AT_ONCE = (Abort, Pause, ApprovalResponse, Continue)
"""Commands that do not wait for a layer boundary."""


_SHOWN = 3
_LONGEST_SIGNATURE = 16_384


class Sender(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who sent a command as the system knows it, whatever name the author gives."""

    user: str
    """The name of `uid`; empty where it has none."""
    uid: int
    host: str
    pid: int
    processes: tuple[str, ...] = ()
    """The process and those above it, nearest first, each as `name pid`."""

    def __str__(self) -> str:
        """For people: the nearest processes are enough; `--json` has them all."""
        near = " < ".join(self.processes[:_SHOWN]) + (" < …" if self.processes[_SHOWN:] else "")
        return f"{self.user or f'uid {self.uid}'}@{self.host}, {near or f'pid {self.pid}'}"


class SignedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of an answer, verified before the answer counted."""

    principal: str
    """Who signed, as `.agentos-signers` names them."""
    key: str
    """The fingerprint of their key."""
    text: str
    """What was signed."""
    signature: str
    """Armored, as ssh-keygen makes and takes it."""

    def __str__(self) -> str:
        return f"{self.principal} (signed, {self.key})"


class CommandRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command with who asked for it and when."""

    command_id: str
    author: str
    attempt_id: str = ""
    """Set where the author's process or context is part of a run: it may not answer a human's gate."""
    sender: Sender | None = None
    """None where an earlier version sent it."""
    at: datetime
    command: Command
    signed: SignedAnswer | None = None
    """Of an answer that has a signature: that it is valid, as whoever drives the run found."""
    unsigned: str = ""
    """Or why it is not."""


def parse_command(raw: Mapping[str, Any]) -> Command:
    """The command, or CommandRefusedError that says which field is wrong."""
    try:
        command: Command = typed.convert(raw, Command)
    except msgspec.ValidationError as error:
        raise CommandRefusedError(
            f"not a valid command: {error}", next_step="See docs/reference.md for each shape."
        ) from error
    for broken in _out_of_range(command):
        raise CommandRefusedError(f"not a valid command: {broken}")
    return command


def command_to_data(command: Command) -> dict[str, Any]:
    """The command as plain data, as stored and as `parse_command` takes it."""
    data: dict[str, Any] = msgspec.to_builtins(command)
    return data


SENDER = "sender"
"""Beside the fields of a command in the inbox: who sent it."""


def command_with_sender(command: Command, sender: Sender) -> dict[str, Any]:
    """A command as it is put into the inbox. No command has a field of that name: nobody else can say it."""
    return {**command_to_data(command), SENDER: msgspec.to_builtins(sender)}


def split_sender(data: Mapping[str, Any]) -> tuple[dict[str, Any], Sender | None]:
    """What `command_with_sender` put together; None where there is no sender, or none that can be read."""
    rest = dict(data)
    try:
        return rest, typed.convert(rest.pop(SENDER, None), Sender | None)
    except msgspec.ValidationError:
        return rest, None


def _out_of_range(command: Command) -> list[str]:
    match command:
        case SkipLayer(layer=layer) if layer < 0:
            return [f"layer {layer} is below 0"]
        case InjectTasks(tasks=tasks) if not tasks:
            return ["inject_tasks without tasks"]
        case ModifyArgs(updates=updates) if not updates:
            return ["modify_args without updates"]
        case ReplanDag(tasks=tasks, remove=remove) if not tasks and not remove:
            return ["replan_dag that changes nothing"]
        case ApprovalResponse(approved=False, answer="happened"):
            return ["`happened` needs approved: true"]
        case ApprovalResponse(choice=choice, answer=answer) if choice and answer:
            return [f"choice {choice!r} and answer {answer!r} say one thing twice; leave `answer` out"]
        case ApprovalResponse(approved=False, choice=choice) if choice:
            return [f"choice {choice!r} needs approved: true"]
        case ApprovalResponse(signature=signature) if len(signature) > _LONGEST_SIGNATURE:
            return [f"a signature of {len(signature)} characters is none"]
    return []

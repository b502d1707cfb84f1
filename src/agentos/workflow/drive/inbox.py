"""Commands from the inbox, as what the machine is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentos.exceptions import CommandRefusedError
from agentos.machine import events as ev
from agentos.machine.commands import CommandRequest, parse_command, split_sender
from agentos.machine.inputs import CommandArrived, CommandUnreadable
from agentos.secrets import Masker
from agentos.store.port import PostedCommand
from agentos.workflow.define.run_secrets import hidden_command


def input_of(posted: PostedCommand, masker: Masker) -> CommandArrived | CommandUnreadable:
    """The command, or why it is none."""
    found: object = posted.command
    try:
        data, sender = split_sender(found) if isinstance(found, dict) else (posted.command, None)
        command = hidden_command(parse_command(data), masker)
    except CommandRefusedError as error:
        shown, why = readable(posted, masker), masker.text(str(error))
        return CommandUnreadable(command_id=posted.id, author=posted.author, command=shown, why=why)
    return CommandArrived(
        asked=CommandRequest(
            command_id=posted.id,
            author=posted.author,
            attempt_id=posted.attempt_id,
            sender=sender,
            at=posted.posted_at,
            command=command,
        )
    )


def readable(posted: PostedCommand, masker: Masker) -> dict[str, Any]:
    """The command as the journal takes it: a map without secrets, whatever somebody put into the inbox."""
    found: object = posted.command
    shown: dict[str, Any] = masker.value(found if isinstance(found, dict) else {"unreadable": repr(found)})[0]
    return shown


def commands_in(events: Sequence[ev.Event]) -> list[str]:
    """The commands that these events deal with."""
    kinds = (ev.CommandReceived, ev.CommandApplied, ev.CommandRefused)
    return [event.command_id for event in events if isinstance(event, kinds)]

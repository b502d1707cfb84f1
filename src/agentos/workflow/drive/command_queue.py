"""Commands to a run, from any process, kept until somebody has dealt with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from agentos.exceptions import CommandRefusedError
from agentos.ids import WorkflowId, new_id
from agentos.machine.commands import Command, command_to_data, command_with_sender, parse_command
from agentos.secrets import Masker
from agentos.store.port import Holder, PostedCommand, StorePort
from agentos.tasks.process.ancestors import acting_attempt, current_sender
from agentos.workflow.define.run_secrets import hidden_command
from agentos.workflow.drive.mailbox import utc_now


class CommandQueue:
    """The inbox of one run. What was sent is durable before `send` returns, and is dealt with once."""

    def __init__(
        self,
        post: Callable[[PostedCommand], None],
        waiting: Callable[[], list[PostedCommand]],
        driver: Callable[[], Holder | None] = lambda: None,
    ) -> None:
        self._post = post
        self._waiting = waiting
        self._driver = driver

    @classmethod
    def of_run(cls, store: StorePort, workflow_id: WorkflowId) -> CommandQueue:
        """The durable inbox of a run. CommandRefusedError on sending to one that has ended for good."""
        return cls(
            lambda posted: post_command(store, workflow_id, posted),
            lambda: store.read_inbox(workflow_id),
            lambda: store.find_run(workflow_id).holder,
        )

    def send(self, command: Command | Mapping[str, Any], *, author: str | None = None) -> str:
        """Check the command and put it in the queue; its id comes back. CommandRefusedError if it is malformed."""
        parsed = parse_command(command) if isinstance(command, Mapping) else command
        parsed = hidden_command(parsed, Masker.for_run())
        driver = self._driver()
        # A driver too old to say its version takes a command that names a sender for a malformed one.
        knows_senders = driver is None or driver.version
        posted = PostedCommand(
            id=new_id(),
            author=author or current_author(),
            attempt_id=acting_attempt(driver),
            posted_at=utc_now(),
            command=command_with_sender(parsed, current_sender()) if knows_senders else command_to_data(parsed),
        )
        self._post(posted)
        return posted.id

    def waiting(self) -> list[PostedCommand]:
        """Commands that nobody has dealt with yet, oldest first."""
        return self._waiting()


def post_command(store: StorePort, workflow_id: WorkflowId, posted: PostedCommand) -> None:
    """Put a command into the durable inbox of a run that can still deal with it; CommandRefusedError otherwise."""
    record = store.find_run(workflow_id)
    if record.status in ("complete", "aborted"):
        raise CommandRefusedError(f"run {workflow_id} is {record.status}; it takes no more commands")
    store.post_command(workflow_id, posted)


def current_author() -> str:
    """Who asks, as the journal names them: the user this process runs as."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"

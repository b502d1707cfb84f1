"""The space that deleted things took."""

from __future__ import annotations

from agentos.cli.output import say
from agentos.cli.render.text import printable
from agentos.client import Client
from agentos.exceptions import SnapshotError, TryAgainError


def give_space_back(client: Client) -> None:
    """Collect what snapshots that were let go of took. Where that cannot be now, it is said, and is no error."""
    try:
        client.collect()
    except (SnapshotError, TryAgainError) as error:
        say(f"The space of snapshots is given back by a later prune: {printable(error.message)}")

"""States that a CheckpointManager saves by itself, in stored form piece by piece."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from agentos.machine.events import StateSaved


class SavedState(msgspec.Struct, frozen=True, kw_only=True):
    """A state that a CheckpointManager saved."""

    current_layer: int = 0
    messages: tuple[Raw, ...] = ()
    tasks: tuple[Raw, ...] = ()
    decisions: tuple[Raw, ...] = ()
    context: Mapping[str, Raw] = {}


def splice_state(was: SavedState, event: StateSaved) -> SavedState:
    """The state after an event that holds what differs from the one before."""
    context = {key: value for key, value in was.context.items() if key not in event.context_removed}
    context.update(msgspec.json.decode(event.context_set, type=dict[str, Raw] | None) or {})
    return SavedState(
        current_layer=event.current_layer,
        messages=was.messages[: event.messages_from] + pieces(event.messages),
        tasks=was.tasks[: event.tasks_from] + pieces(event.tasks),
        decisions=was.decisions[: event.decisions_from] + pieces(event.decisions),
        context=context,
    )


def pieces(stored: bytes | Raw) -> tuple[Raw, ...]:
    """The elements of a stored list, each in stored form; none for no value."""
    return msgspec.json.decode(stored, type=tuple[Raw, ...] | None) or ()

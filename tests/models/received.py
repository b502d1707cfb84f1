"""A request as the tests' model server saw it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(kw_only=True)
class Received:
    """One request. Times are of `time.monotonic`."""

    number: int
    """Counted from 1, in the order of arrival."""
    method: str
    path: str
    """With its query."""
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes
    at: float
    at_once: int
    """How many were being answered when it came, itself included."""
    ended: float | None = None
    refused: bool = False
    """Answered with 429, since too many were there."""
    client_left: bool = False
    """The client closed the connection before the answer was complete."""

    @cached_property
    def json(self) -> Any:
        """The body; an empty object where it is no JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}

    @property
    def text(self) -> str:
        """Everything that was said in it, for a reply that depends on the prompt."""
        return self.body.decode("utf-8", "replace")

    @property
    def key(self) -> str:
        """The credential, wherever the protocol puts it."""
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return bearer or self.headers.get("x-api-key") or self.headers.get("x-goog-api-key") or ""

"""Forms that only this server can have made, for the one browser session that was shown them."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping

import msgspec

SEAL = "seal"
"""The field of a form that holds its seal; what it covers is in SEALED."""
SEALED = "sealed"


class Seals:
    """Seals and checks the hidden fields of forms. They are good as long as this process lives."""

    def __init__(self) -> None:
        self._key = os.urandom(32)

    def seal(self, session: str, action: str, fields: Mapping[str, str]) -> dict[str, str]:
        """The hidden fields of a form that asks for this action, with these values, in this session."""
        body = msgspec.json.encode(dict(sorted(fields.items()))).decode()
        return {SEALED: body, SEAL: self._digest(session, action, body)}

    def open(self, session: str, action: str, form: Mapping[str, str]) -> dict[str, str] | None:
        """What was sealed; None where the seal is not ours, or is of another action or session."""
        body = form.get(SEALED, "")
        if not hmac.compare_digest(self._digest(session, action, body).encode(), form.get(SEAL, "").encode()):
            return None
        return msgspec.json.decode(body, type=dict[str, str])

    def _digest(self, session: str, action: str, body: str) -> str:
        text = msgspec.json.encode([session, action, body])
        return hmac.digest(self._key, text, "sha256").hex()

"""What tools give: JSON, masked and short. A model pays for each word, and asks for more where it wants more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentos.client.views import StoredRun
from agentos.render.text import escape_json
from agentos.secrets import Masker
from agentos.values import without_surrogates

LINE = 400
"""Characters of one line, question or message."""


def encode_answer(answer: Mapping[str, Any]) -> str:
    """The answer as JSON, without what is empty; of every secret that is known here only its name."""
    masked = Masker.for_run().value_and_names(_compact(answer))[0]
    return escape_json(msgspec.json.encode(without_surrogates(masked), enc_hook=str)).decode()


def _compact(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _compact(one) for name, one in value.items() if one not in (None, "", [], {}, ())}
    return [_compact(one) for one in value] if isinstance(value, (list, tuple)) else value


def excerpt_patch(patch: bytes, runs: Iterable[StoredRun], offset: int, most: int) -> dict[str, Any]:
    """Part of a patch, and where the next one begins. Masked before it is cut: half a secret is not recognised."""
    names = [name for run in runs if run.plan is not None for name in run.plan.settings.secrets]
    text = Masker.for_run(names).bytes(patch).decode(errors="backslashreplace")
    part = text[offset : offset + most] if most else ""
    end = offset + len(part)
    return {"patch": part, "patch_chars": len(text), "next_offset": end if part and end < len(text) else None}

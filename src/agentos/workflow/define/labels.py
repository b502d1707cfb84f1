"""Labels of a run: words of the user's own, by which lists and workers pick runs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentos.exceptions import RunRefusedError

MAX_LABELS = 32
_LABEL = re.compile(r"\w[\w./:=+@-]{0,62}")


def checked_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """In order, each once. RunRefusedError where one is no label, or there are too many."""
    if isinstance(labels, str):  # would be its letters
        labels = (labels,)
    given = sorted(set(labels))
    if wrong := [label for label in given if not _LABEL.fullmatch(label)]:
        raise RunRefusedError(
            f"{wrong[0][:80]!r} is no label",
            next_step="A label is a word of up to 63 letters, digits and . / : = + @ - _, not a sign first.",
        )
    if len(given) > MAX_LABELS:
        raise RunRefusedError(
            f"a run has at most {MAX_LABELS} labels, and {len(given)} are given",
            next_step="Keep those that you would pick runs by.",
        )
    return tuple(given)

"""Paths that a restore must not write or delete."""

from __future__ import annotations

from collections.abc import Iterable


class Protection:
    """A set of paths; one that ends in `/`, or names a folder or repository, covers all that lies below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = {path.rstrip("/") for path in paths if path.strip("/")}
        self._above = {above for path in self._paths for above in _parents(path)}

    def covers(self, path: str) -> bool:
        """Whether `path` is protected, or lies in something that is."""
        return path in self._paths or any(above in self._paths for above in _parents(path))

    def lies_below(self, path: str) -> bool:
        """Whether something protected lies below `path`: then no file can take its place."""
        return path in self._above


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]

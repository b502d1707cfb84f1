"""Which stores there are, by how a database is named. Another store is one more row here, and its package."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.exceptions import WorkflowConfigurationError
from agentos.extras import install_command

if TYPE_CHECKING:
    from agentos.store.port import Durability, StorePort
    from agentos.store.stats import Statistics


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of store. Its package is loaded only by those who keep something in it."""

    title: str
    """What people call it."""
    package: str
    is_shared: bool = False
    """Whether it is a server's, which other hosts and repositories use as well: runs have scopes there."""
    example: str = ""
    """How a URL of it is written; empty where it is a file."""
    extra: str = ""
    """What has to be installed for it, as pip calls it."""

    def open(
        self, database: str, *, durability: Durability, create: bool, readonly: bool, **surroundings: Any
    ) -> StorePort:
        """As `open_store` of its module `database`: a shared one is given a `scope`, a file what is around it."""
        store: StorePort = self._load("database", database).open_store(
            database, durability=durability, create=create, readonly=readonly, **surroundings
        )
        return store

    def statistics(self, database: str) -> Statistics:
        statistics: Statistics = self._load("stats", database)
        return statistics

    def copies(self, database: str) -> Any:
        """The module `copies`: how a whole database is copied and put back. Each store has its own way."""
        return self._load("copies", database)

    def _load(self, module: str, database: str) -> Any:
        try:
            return import_module(f"{self.package}.{module}")
        except ImportError as error:
            if not self.extra:
                raise
            raise WorkflowConfigurationError(
                f"{self.title} is named ({without_password(database)}), and its driver is not installed",
                next_step=f"Install it with `{install_command(self.extra)}`, or unset AGENTOS_WORKFLOW_DB.",
            ) from error


SQLITE = Backend(title="SQLite", package="agentos.store.sqlite")
POSTGRESQL = Backend(
    title="PostgreSQL",
    package="agentos.store.postgres",
    is_shared=True,
    example="postgresql://user@host/database",
    extra="postgres",
)
BACKENDS = {"": SQLITE, "postgresql": POSTGRESQL, "postgres": POSTGRESQL}
"""By the scheme of a URL; a path has none."""
URL_KINDS = " or ".join(
    dict.fromkeys(f"{one.example.partition('://')[0]}://" for one in BACKENDS.values() if one.example)
)
"""How a URL may begin, to be named in messages."""

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://|(" + "|".join(filter(None, BACKENDS)) + "):", re.IGNORECASE)


def is_url(database: str) -> bool:
    """Whether a database is meant to be named by a URL, if not well written: nobody calls a file so."""
    return _URL.match(database) is not None


def find_backend(database: str) -> Backend:
    """The store of a database. KeyError, with the scheme, for a URL of another kind."""
    url = _URL.match(database)
    return BACKENDS["" if url is None else (url[1] or url[2]).lower()]


def without_password(database: str) -> str:
    """A URL as it may be printed; a path as it is. Where it cannot be told what is a password, more is hidden."""
    hidden = re.sub(r"(?<=[?&])((?:ssl)?password)=[^&]*", r"\1=***", database, flags=re.IGNORECASE)
    if "@" in database and "@" not in hidden:  # of `?password=a@b`, or of a password with `?password=` in it
        return re.sub(r"(?<=://)([^:/?#]*):.*?(?=\?|$)", r"\1:***", hidden)
    return re.sub(r"(?<=://)([^:/?#]*):.*@", r"\1:***@", hidden)

"""The statements of queries.sql for one schema, as the server gets them: every name in them says whose it is.

The search path would do the same with less text, where a session is ours. Behind a pooler it is whoever's was there
before, and a run would be written to their schema.
"""

from __future__ import annotations

import re
from functools import cache

from psycopg import sql

from agentos.store.sqlfiles import queries

_PLACEHOLDER = re.compile(r"\$(\d+)")
_SCOPE = "$scope"
_COMMITS = {
    # A stronger setting of the server's stays.
    False: "CASE current_setting('synchronous_commit') WHEN 'off' "
    "THEN set_config('synchronous_commit', 'on', true) END",
    True: "set_config('synchronous_commit', 'off', true)",
}
_IDLE = "SET LOCAL idle_in_transaction_session_timeout = "


class Statements:
    """Texts by their names in queries.sql, and what transactions begin with.

    Whatever they set ends with the transaction: the session may be somebody else's in the next.
    """

    def __init__(self, schema: str, *, lazy_commits: bool) -> None:
        self.schema = sql.Identifier(schema).as_string()
        self._durably = _COMMITS[lazy_commits]
        texts = queries("postgres/queries.sql")
        self.scoped = frozenset(name for name, text in texts.items() if _SCOPE in text)
        self._texts = {name: self.complete(text) for name, text in texts.items()}
        # Readers hold no lock that a takeover waits for, and may think about what they read for a while.
        self.begin_reading = f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {_IDLE}'60s'"
        # Shorter than any lease that can be set: one stopped inside a transaction loses it before its lease ends.
        self.begin_writing = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {_IDLE}'2s'; SELECT {self._durably}"
        self.begin_long = self.begin_writing.replace("'2s'", "'60s'")

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def complete(self, text: str) -> str:
        """A statement with its scopes numbered behind the other arguments, and our schema in it."""
        last = max((int(number) for number in _PLACEHOLDER.findall(text)), default=0)
        text = text.replace(_SCOPE, f"${last + 1}").replace("$durably", self._durably)
        return text.replace("$schema", self.schema)


@cache
def statements_of(schema: str, *, lazy_commits: bool) -> Statements:
    return Statements(schema, lazy_commits=lazy_commits)

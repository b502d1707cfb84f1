-- What the processes of one user know together about calls to models and agents. All of it can be lost: limits are
-- then counted anew.

-- A call under way (`began` set) or waiting its turn, in the order of ids.
CREATE TABLE call (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    credential TEXT NOT NULL,
    holder TEXT NOT NULL,
    seen REAL NOT NULL,
    began REAL
) STRICT;
CREATE INDEX call_of ON call (credential, id);

-- When calls began, for as long as a minute looks back.
CREATE TABLE start (
    credential TEXT NOT NULL,
    at REAL NOT NULL
) STRICT;
CREATE INDEX start_of ON start (credential, at);

-- Nobody calls before `cool_until`; until `cap_until`, at most `cap` at once.
CREATE TABLE credential (
    name TEXT PRIMARY KEY,
    cool_from REAL NOT NULL DEFAULT 0,
    cool_until REAL NOT NULL DEFAULT 0,
    cap INTEGER NOT NULL DEFAULT 0,
    cap_until REAL NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE spending (
    credential TEXT NOT NULL,
    day TEXT NOT NULL,
    usd REAL NOT NULL,
    PRIMARY KEY (credential, day)
) STRICT, WITHOUT ROWID;

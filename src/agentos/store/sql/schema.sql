-- The schema as it is now; views.sql is laid on top. A fresh database is made from these two, an older one becomes
-- equal to it through migrations/, and a test compares the two.
-- Times are integer microseconds since 1970, UTC. Types are small integers, named in event_type.

-- Facts about this database, for people who look into it.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- Names of the type codes in event. Codes are never reused.
CREATE TABLE event_type (
    code INTEGER PRIMARY KEY,
    name TEXT NOT NULL
);

-- One row for each run: where its journal stands (sequence, digest) and who may write to it (token, holder, lease_*).
-- A number is never used again: whoever still holds the one of a deleted run must not reach another.
-- The lease columns keep their names and meaning in every later schema: a migration must be able to read them first.
-- A run that was submitted is `queued`, shown as pending, until its first event: then queue, priority, ready_at (it may be
-- taken from then on) and submitted_from say how. limit_key, run_limit: at most so many runs of a key are driven at once;
-- one that is driven has a slot, from 1 on.
CREATE TABLE run (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('workflow', 'states')),
    status TEXT NOT NULL,
    layer INTEGER NOT NULL,
    layers INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    sequence INTEGER NOT NULL CHECK (sequence >= 0),
    digest BLOB NOT NULL,
    plan_revision INTEGER NOT NULL,
    token INTEGER NOT NULL,
    holder TEXT,
    lease_boot TEXT NOT NULL,
    lease_expires REAL NOT NULL,
    lease_until INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    source TEXT NOT NULL,
    root TEXT NOT NULL,
    host TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    parent_id TEXT,
    labels TEXT NOT NULL,
    queue TEXT,
    priority INTEGER,
    ready_at INTEGER,
    limit_key TEXT,
    run_limit INTEGER,
    slot INTEGER,
    submitted_from TEXT
);

-- Lists are read from the newest on, of all runs or of those in one status, as far as they are wanted.
CREATE INDEX run_newest ON run (created_at, no);
CREATE INDEX run_status ON run (status, created_at, no);

-- What may be taken next: a few rows from the front, however many wait.
CREATE INDEX run_queued ON run (queue, priority DESC, created_at, no, ready_at) WHERE status = 'queued';

-- No two workers get past a limit.
CREATE UNIQUE INDEX run_slot ON run (limit_key, slot) WHERE slot IS NOT NULL;

-- The journal. Rows are added and never changed; they go only with their run.
-- Run and sequence together are the row's number (room for 8 million runs, and a million million events in each): so
-- there is one tree to write to and not a second one that finds its rows. Look for `no`, not for run and seq.
CREATE TABLE event (
    no INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    type INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    blob BLOB,
    digest BLOB NOT NULL,
    run INTEGER GENERATED ALWAYS AS (no >> 40) VIRTUAL,
    seq INTEGER GENERATED ALWAYS AS (no & 1099511627775) VIRTUAL
);

-- Events that change what others mean (resume_planned, plan_changed, rolled_back, run_forked) are few: the views find
-- them without a scan.
CREATE INDEX event_turn ON event (run, type, seq) WHERE type = 3 OR type BETWEEN 24 AND 26;

CREATE INDEX event_blob ON event (blob) WHERE blob IS NOT NULL;

-- Large outputs by the digest of their bytes; shared by all runs of this database.
CREATE TABLE blob (
    digest BLOB PRIMARY KEY,
    size INTEGER NOT NULL,
    body TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE plan (
    run INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    body TEXT NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (run, revision)
) WITHOUT ROWID;

-- Cuts in the journal. The state of one is folded from the events up to its sequence: see the view workflow_checkpoint.
-- There are few of them, so that one is found by its id without an index, which every cut would have to write.
CREATE TABLE checkpoint (
    id TEXT NOT NULL,
    run INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    layer INTEGER NOT NULL CHECK (layer >= 0),
    at INTEGER NOT NULL,
    digest BLOB NOT NULL,
    snapshot TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '',
    abandoned INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run, sequence)
) WITHOUT ROWID;

-- Commands for whoever drives the run. Consumed ones stay, as a record of who asked for what.
CREATE TABLE inbox (
    no INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    run INTEGER NOT NULL,
    posted_at INTEGER NOT NULL,
    author TEXT NOT NULL,
    attempt_id TEXT NOT NULL,
    body TEXT NOT NULL,
    consumed_at INTEGER,
    UNIQUE (run, id)
);

-- Workflows that run by themselves, by name. `version` grows with every change: who writes one names the version it has
-- read. `state` says how far the schedule has come; it stays when the schedule is removed (active = 0) and when its runs
-- are deleted, so that no slot comes twice. cron, state and begins (how its runs begin) are JSON.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    active INTEGER NOT NULL,
    cron TEXT NOT NULL,
    state TEXT NOT NULL,
    begins TEXT NOT NULL,
    plan BLOB NOT NULL,
    changed_at INTEGER NOT NULL
);

-- Which runs have a label, newest last: the runs with a rare one are found without looking at the others.
CREATE TABLE label (
    label TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (label, created_at, run)
) WITHOUT ROWID;

CREATE INDEX label_run ON label (run);

-- The questions that runs wait with, by the events that asked them; sequence 0: the journal has to be folded to know.
CREATE TABLE question (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

-- In which statuses beside `complete` a run that has ended left tasks, or may have: the view `tasks` looks there alone.
CREATE TABLE task_left (
    run INTEGER NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (run, status)
) WITHOUT ROWID;

CREATE INDEX task_left_status ON task_left (status, run);

-- The first schema. Names are looked up in one schema alone, which is the caller's to choose.
-- Times are integer microseconds since 1970, UTC, as on SQLite; leases alone are told by the clock of the server.
-- Text that is searched or sorted by us is compared by its bytes (COLLATE "C"), whatever the database's language is.

-- Facts about this schema: that it is ours (`application`), and its version (`schema`).
CREATE TABLE meta (
    key text PRIMARY KEY,
    value text NOT NULL
);

-- Names of the type codes in event. Codes are never reused.
CREATE TABLE event_type (
    code smallint PRIMARY KEY,
    name text NOT NULL
);

-- A worktree of a repository. Whoever works there sees the runs of this scope.
CREATE TABLE scope (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    repository text COLLATE "C" NOT NULL,
    worktree text COLLATE "C" NOT NULL,
    UNIQUE (repository, worktree)
);

-- One row for each run: where its journal stands (sequence, digest) and who may write to it (token, holder, lease_until).
-- It is written with every batch of events: half of each page is left free, so that its new version fits beside it and
-- no index has to follow; and it has no CHECK, which the server would read from its catalogue each time.
CREATE TABLE run (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    layer integer NOT NULL,
    layers integer NOT NULL,
    epoch integer NOT NULL,
    sequence bigint NOT NULL,
    digest bytea NOT NULL,
    plan_revision integer NOT NULL,
    token bigint NOT NULL,
    holder text,
    lease_until timestamptz NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    source text NOT NULL,
    root text NOT NULL,
    host text NOT NULL,
    fingerprint text NOT NULL,
    parent_id text,
    labels text NOT NULL,
    UNIQUE (scope, id)
) WITH (fillfactor = 50);

-- Lists are read from the newest on, of all runs of a scope or of those in one status, as far as they are wanted: what
-- workers look for again and again costs the same, however many runs have ended.
CREATE INDEX run_newest ON run (scope, created_at DESC, no DESC);
CREATE INDEX run_status ON run (scope, status, created_at DESC, no DESC);

-- For the views, which are asked for a run by its id alone.
CREATE INDEX run_id ON run (id);

-- Runs that somebody holds, or did not let go.
CREATE INDEX run_held ON run (lease_until) WHERE holder IS NOT NULL;

-- The journal. Rows are added and never changed; they go only with their run.
-- `body` is JSON to the byte, since the digest covers its bytes. JSONB has no NUL: where the text of an event holds one,
-- `plain` says the same with that text tagged, and the views read it instead.
CREATE TABLE event (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    type smallint NOT NULL,
    version smallint NOT NULL,
    body text NOT NULL,
    plain text,
    blob bytea,
    digest bytea NOT NULL,
    PRIMARY KEY (run, seq)
);

-- Events that change what others mean (resume_planned, plan_changed, rolled_back, run_forked) are few.
CREATE INDEX event_turn ON event (run, seq) WHERE type = 3 OR type BETWEEN 24 AND 26;

-- Large outputs by the digest of their bytes. Each run has its own: a run that is deleted while another one writes the
-- same bytes must not take them along.
CREATE TABLE blob (
    run bigint NOT NULL,
    digest bytea NOT NULL,
    size bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (run, digest)
);

CREATE TABLE plan (
    run bigint NOT NULL,
    revision integer NOT NULL,
    body bytea NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (run, revision)
);

-- Cuts in the journal. The state of one is folded from the events up to its sequence: see the view workflow_checkpoint.
CREATE TABLE checkpoint (
    id text COLLATE "C" NOT NULL,
    run bigint NOT NULL,
    sequence bigint NOT NULL,
    layer integer NOT NULL CONSTRAINT "layer >= 0" CHECK (layer >= 0),
    at bigint NOT NULL,
    digest bytea NOT NULL,
    snapshot text NOT NULL,
    name text NOT NULL DEFAULT '',
    abandoned boolean NOT NULL DEFAULT false,
    PRIMARY KEY (run, sequence)
);

CREATE INDEX checkpoint_id ON checkpoint (id);

-- Commands for whoever drives the run. Consumed ones stay, as a record of who asked for what.
CREATE TABLE inbox (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    run bigint NOT NULL,
    posted_at bigint NOT NULL,
    author text NOT NULL,
    attempt_id text NOT NULL,
    body text NOT NULL,
    consumed_at bigint,
    UNIQUE (run, id)
);

CREATE INDEX inbox_open ON inbox (run, no) WHERE consumed_at IS NULL;

-- Runs that somebody follows. Only their events are told with NOTIFY: it makes commits wait for each other. What is lost
-- with a crash of the server is said again within seconds.
CREATE UNLOGGED TABLE follower (
    run bigint PRIMARY KEY,
    until timestamptz NOT NULL
);

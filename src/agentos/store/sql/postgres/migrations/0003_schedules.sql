-- Workflows that run by themselves, by name; each belongs to one worktree of its repository. `version` grows with every
-- change: who writes one names the version it has read. `state` says how far the schedule has come; it stays when the
-- schedule is removed (not active) and when its runs are deleted, so that no slot comes twice. cron, state and begins (how
-- its runs begin) are JSON.
CREATE TABLE schedule (
    repository text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    worktree text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    active boolean NOT NULL,
    cron text NOT NULL,
    state text NOT NULL,
    begins text NOT NULL,
    plan bytea NOT NULL,
    changed_at bigint NOT NULL,
    PRIMARY KEY (repository, name)
);

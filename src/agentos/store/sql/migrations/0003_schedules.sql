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

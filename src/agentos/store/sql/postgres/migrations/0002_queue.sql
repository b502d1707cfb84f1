-- Runs that wait to be driven (status `queued`, shown as pending), and limits over runs.
-- queue, priority, ready_at (microseconds), submitted_from: of a run that was submitted; else NULL.
-- limit_key, run_limit, slot: at most so many runs of a key are driven at once. A driven one has a slot, from 1 on, and
-- the unique index is what no two workers get past. The key begins with the repository it counts in, and a newline.
ALTER TABLE run
    ADD COLUMN queue text COLLATE "C",
    ADD COLUMN priority integer,
    ADD COLUMN ready_at bigint,
    ADD COLUMN limit_key text COLLATE "C",
    ADD COLUMN run_limit integer,
    ADD COLUMN slot integer,
    ADD COLUMN submitted_from text;

-- What may be taken next: a few rows from the front, however many wait.
CREATE INDEX run_queued ON run (scope, queue, priority DESC, created_at, no, ready_at) WHERE status = 'queued';
CREATE UNIQUE INDEX run_slot ON run (limit_key, slot) WHERE slot IS NOT NULL;

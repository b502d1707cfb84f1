-- Runs that wait to be driven (status `queued`, shown as pending), and limits over runs.

ALTER TABLE run ADD COLUMN queue TEXT;
ALTER TABLE run ADD COLUMN priority INTEGER;
ALTER TABLE run ADD COLUMN ready_at INTEGER;
ALTER TABLE run ADD COLUMN limit_key TEXT;
ALTER TABLE run ADD COLUMN run_limit INTEGER;
ALTER TABLE run ADD COLUMN slot INTEGER;
ALTER TABLE run ADD COLUMN submitted_from TEXT;

CREATE INDEX run_queued ON run (queue, priority DESC, created_at, no, ready_at) WHERE status = 'queued';
CREATE UNIQUE INDEX run_slot ON run (limit_key, slot) WHERE slot IS NOT NULL;

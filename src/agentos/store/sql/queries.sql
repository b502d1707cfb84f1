-- Every statement the SQLite store runs, but for PRAGMA, BEGIN, COMMIT and ROLLBACK.
-- `-- name: purpose` begins one; sqlfiles.py reads them.

-- insert_run: a run with its first lease; nothing where the id exists
INSERT INTO run (id, name, kind, digest, plan_revision, holder, lease_boot, lease_expires, lease_until,
                 created_at, updated_at, source, root, host, fingerprint, parent_id, labels, limit_key, run_limit, slot,
                 status, layer, layers, epoch, sequence, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, 0, 0, 0, 1)
ON CONFLICT (id) DO NOTHING;

-- submit_run: a run that nobody drives yet; nothing where the id exists
INSERT INTO run (id, name, kind, digest, plan_revision, created_at, updated_at, source, root, host, fingerprint, parent_id,
                 labels, limit_key, run_limit, queue, priority, ready_at, submitted_from, holder, lease_boot,
                 lease_expires, lease_until, status, layer, layers, epoch, sequence, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', 0, 0, 'queued', 0, 0, 0, 0, 0)
ON CONFLICT (id) DO NOTHING;

-- read_waiting: how those of these runs (a list as JSON) were submitted that have not begun
SELECT id, '', '', queue, priority, ready_at, limit_key, run_limit, submitted_from
FROM run WHERE status = 'queued' AND id IN (SELECT value FROM json_each(?));

-- next_queued: submitted runs of one queue that may be taken, of these workflows and with one of these labels (lists as
-- JSON; empty is any), but for those passed over (id and sequence) and those of keys that are full; the first to go first
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels,
       queue, priority, ready_at, limit_key, run_limit, submitted_from, no, token, digest
FROM run WHERE status = 'queued' AND queue = ?1 AND ready_at <= ?6
AND (?2 = '[]' OR name IN (SELECT value FROM json_each(?2)))
AND (?3 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?3 END) AS has
    JOIN json_each(?3) AS asked ON asked.value = has.value))
AND (?4 = '{}' OR NOT EXISTS (SELECT 1 FROM json_each(?4) AS past WHERE past.key = run.id AND past.value = run.sequence))
AND (limit_key IS NULL OR limit_key NOT IN (SELECT value FROM json_each(?5)))
ORDER BY priority DESC, created_at, no;

-- next_undriven: the same of runs in one stored status whose driver may have died, whatever queue (a list) they are of
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels,
       queue, priority, ready_at, limit_key, run_limit, submitted_from, no, token, digest
FROM run WHERE status = ?6 AND kind = 'workflow' AND coalesce(queue, '') IN (SELECT value FROM json_each(?1))
AND (?2 = '[]' OR name IN (SELECT value FROM json_each(?2)))
AND (?3 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?3 END) AS has
    JOIN json_each(?3) AS asked ON asked.value = has.value))
AND (?4 = '{}' OR NOT EXISTS (SELECT 1 FROM json_each(?4) AS past WHERE past.key = run.id AND past.value = run.sequence))
AND (limit_key IS NULL OR limit_key NOT IN (SELECT value FROM json_each(?5)))
ORDER BY coalesce(priority, 0) DESC, created_at, no;

-- held_slots: of one limit, or of all: runs that count, if their lease is still good
SELECT no, id, limit_key, run_limit, slot, holder, lease_boot, lease_expires, lease_until
FROM run WHERE slot IS NOT NULL AND (?1 IS NULL OR limit_key = ?1);

-- queued_of_limit: submitted runs of a limit that have not begun
SELECT id FROM run WHERE status = 'queued' AND limit_key = ? ORDER BY created_at, no;

-- free_slot: of a run whose lease is over; should its driver come back, it finds that it may not write
UPDATE run SET slot = NULL, token = token + 1 WHERE no = ?;

-- return_lease: a lease that was taken in vain, as it was found
UPDATE run SET holder = ?, lease_boot = ?, lease_expires = ?, lease_until = ?, slot = NULL WHERE id = ? AND token = ?;

-- find_created: the run that this very call has made, before the database was found in another file
SELECT no FROM run WHERE id = ? AND holder = ? AND created_at = ? AND token = 1 AND sequence = 0;

-- move_run: to another worktree, for whoever holds its lease
UPDATE run SET root = ?, host = ? WHERE id = ? AND token = ? AND holder IS NOT NULL;

-- set_source: where its workflow is defined, for whoever holds its lease
UPDATE run SET source = ? WHERE id = ? AND token = ? AND holder IS NOT NULL;

-- advance_run: fencing, compare-and-swap on the head of the journal, and the progress, in one statement
UPDATE run SET sequence = ?, digest = ?, layer = ?, layers = ?, epoch = ?, updated_at = ?
WHERE no = ? AND token = ? AND sequence = ? AND holder IS NOT NULL;

-- set_status: by itself and only where it is another one, since an index has to follow
UPDATE run SET status = ?2 WHERE no = ?1 AND status <> ?2;

-- insert_label: one of a run's
INSERT INTO label (label, created_at, run) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- insert_question: an event that asks something, or 0
INSERT INTO question (run, seq) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- delete_question: none is open, or others are
DELETE FROM question WHERE run = ?;

-- insert_task_left: a status in which an ended run has tasks, or may have
INSERT INTO task_left (run, status) VALUES (?, ?) ON CONFLICT DO NOTHING;

-- delete_task_left: of a run that went on and ended again
DELETE FROM task_left WHERE run = ?;

-- insert_event: one row of the journal
INSERT INTO event (no, at, type, version, body, blob, digest)
VALUES ((? << 40) + ?, ?, ?, ?, CAST(? AS TEXT), ?, ?);

-- insert_blob: a large output of a run; the same bytes are stored once, whichever run they are of
INSERT INTO blob (digest, size, body) SELECT ?2, ?3, CAST(?4 AS TEXT) WHERE ?1 IS NOT NULL ON CONFLICT (digest) DO NOTHING;

-- insert_checkpoint: the cut a checkpoint event makes
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot) VALUES (?, ?, ?, ?, ?, ?, ?);

-- abandon_checkpoints: a rollback leaves those between its target and itself behind
UPDATE checkpoint SET abandoned = 1 WHERE run = ? AND sequence > ? AND sequence < ?;

-- next_plan: the number of a new plan revision
UPDATE run SET plan_revision = plan_revision + 1 WHERE no = ? RETURNING plan_revision;

-- insert_plan: one revision of the base plan
INSERT INTO plan (run, revision, body, digest) VALUES (?, ?, CAST(? AS TEXT), ?);

-- consume_command: takes a command out of the inbox
UPDATE inbox SET consumed_at = ? WHERE run = ? AND id = ? AND consumed_at IS NULL;

-- find_head: where the journal of a run stands
SELECT no, sequence, digest FROM run WHERE id = ?;

-- read_events: a stretch of the journal
SELECT seq, at, type, version, CAST(body AS BLOB), blob, digest FROM event
WHERE no > (?1 << 40) + ?2 AND no <= (?1 << 40) + ?3 ORDER BY no;

-- read_digest: the running digest at one place
SELECT digest FROM event WHERE no = (? << 40) + ?;

-- read_blob: a large output of a run; here all runs share them
SELECT CAST(body AS BLOB) FROM blob WHERE ?1 IS NOT NULL AND digest = ?2;

-- read_blob_start: the first characters of it
SELECT CAST(substr(body, 1, ?3) AS BLOB) FROM blob WHERE ?1 IS NOT NULL AND digest = ?2;

-- find_revision: the number of the newest plan
SELECT no, plan_revision FROM run WHERE id = ?;

-- read_plan: one revision
SELECT CAST(body AS BLOB), digest FROM plan WHERE run = ? AND revision = ?;

-- find_runs: by exact id or prefix; the exact one first
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels
FROM run WHERE id = ?1 OR (id > ?1 AND id < ?1 || char(1114111)) ORDER BY id LIMIT ?2;

-- list_runs: newest first, all or (a list as JSON) those with one of the labels, of this name, with this text in id or
-- name, behind this moment and run; read as far as they are wanted
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels
FROM run WHERE (created_at, no) < (?4, coalesce((SELECT b.no FROM run AS b WHERE b.id = ?5), 9223372036854775807))
AND (?2 IS NULL OR name = ?2)
AND (?3 IS NULL OR instr(lower(id), lower(?3)) OR instr(lower(name), lower(?3)))
AND (?1 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?1 END) AS has
    JOIN json_each(?1) AS asked ON asked.value = has.value))
ORDER BY created_at DESC, no DESC;

-- list_runs_in: the same of one stored status
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels, no
FROM run WHERE status = ?6
AND (created_at, no) < (?4, coalesce((SELECT b.no FROM run AS b WHERE b.id = ?5), 9223372036854775807))
AND (?2 IS NULL OR name = ?2)
AND (?3 IS NULL OR instr(lower(id), lower(?3)) OR instr(lower(name), lower(?3)))
AND (?1 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?1 END) AS has
    JOIN json_each(?1) AS asked ON asked.value = has.value))
ORDER BY created_at DESC, no DESC;

-- list_labelled: the same of those with one label, in any status
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder, r.lease_boot,
       r.lease_expires, r.lease_until, r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id,
       r.labels, r.no
FROM label AS l CROSS JOIN run AS r ON r.no = l.run WHERE l.label = ?1
AND (l.created_at, l.run) < (?4, coalesce((SELECT b.no FROM run AS b WHERE b.id = ?5), 9223372036854775807))
AND (?2 IS NULL OR r.name = ?2)
AND (?3 IS NULL OR instr(lower(r.id), lower(?3)) OR instr(lower(r.name), lower(?3)))
ORDER BY l.created_at DESC, l.run DESC;

-- open_questions: what runs under way ask, newest runs first; with the events that ask it, and the digests before them
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder, r.lease_boot,
       r.lease_expires, r.lease_until, r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id,
       r.labels, q.seq, e.at, e.type, e.version, CAST(e.body AS BLOB), e.blob, e.digest,
       (SELECT p.digest FROM event AS p WHERE p.no = (r.no << 40) + q.seq - 1)
FROM question AS q CROSS JOIN run AS r ON r.no = q.run LEFT JOIN event AS e ON e.no = (r.no << 40) + q.seq
WHERE r.kind = 'workflow' AND r.status IN ('pending', 'running', 'waiting', 'paused')
ORDER BY r.created_at DESC, r.no DESC, q.seq;

-- find_checkpoints: by exact id or prefix, the exact one first; with the event that must say the same
SELECT c.id, r.id, c.layer, c.sequence, c.at, c.snapshot, c.abandoned, c.digest,
       e.at, e.type, CAST(e.body AS BLOB), e.digest
FROM checkpoint AS c JOIN run AS r ON r.no = c.run LEFT JOIN event AS e ON e.no = (c.run << 40) + c.sequence
WHERE c.id = ?1 OR (c.id > ?1 AND c.id < ?1 || char(1114111)) ORDER BY c.id LIMIT ?2;

-- list_checkpoints: oldest first, with the event that must say the same
SELECT c.id, r.id, c.layer, c.sequence, c.at, c.snapshot, c.abandoned, c.digest,
       e.at, e.type, CAST(e.body AS BLOB), e.digest
FROM checkpoint AS c JOIN run AS r ON r.no = c.run LEFT JOIN event AS e ON e.no = (c.run << 40) + c.sequence
WHERE r.id = ? ORDER BY c.sequence;

-- prune_checkpoints: what is older than the newest that count; of what a rollback left behind since, as many stay
DELETE FROM checkpoint WHERE run = ?1 AND (
    sequence < (SELECT c.sequence FROM checkpoint AS c WHERE c.run = ?1 AND NOT c.abandoned
                ORDER BY c.sequence DESC LIMIT 1 OFFSET ?2 - 1)
    OR abandoned AND sequence < (SELECT c.sequence FROM checkpoint AS c WHERE c.run = ?1 AND c.abandoned
                                 ORDER BY c.sequence DESC LIMIT 1 OFFSET ?2 - 1));

-- has_schedules: whether this schema has them; an older one that is only read does not
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'schedule';

-- list_schedules: by name, removed ones too
SELECT name, version, active, cron, state, begins, changed_at, '', '' FROM schedule ORDER BY name;

-- read_schedule_plan: what its runs are planned as
SELECT plan FROM schedule WHERE name = ?;

-- insert_schedule: a new one; nothing where the name is known
INSERT INTO schedule (active, cron, state, begins, changed_at, plan, name, version) VALUES (?, ?, ?, ?, ?, ?, ?, 1)
ON CONFLICT (name) DO NOTHING;

-- change_schedule: in the place of the version that was read
UPDATE schedule SET active = ?, cron = ?, state = ?, begins = ?, changed_at = ?, plan = coalesce(?, plan),
                    version = version + 1
WHERE name = ? AND version = ?;

-- count_checkpoints: whether there is anything to prune
SELECT count(*) FROM checkpoint WHERE run = ?;

-- count_checkpoints_of: the same, of a run by its id
SELECT no, (SELECT count(*) FROM checkpoint WHERE checkpoint.run = no) FROM run WHERE id = ?;

-- insert_command: into the inbox of a run
INSERT INTO inbox (id, run, posted_at, author, attempt_id, body)
SELECT ?2, no, ?3, ?4, ?5, CAST(?6 AS TEXT) FROM run WHERE id = ?1
ON CONFLICT (run, id) DO NOTHING;

-- read_inbox: what was asked and not yet taken up
SELECT i.id, i.posted_at, i.author, i.attempt_id, CAST(i.body AS BLOB)
FROM inbox AS i JOIN run AS r ON r.no = i.run WHERE r.id = ? AND i.consumed_at IS NULL ORDER BY i.no;

-- find_lease: who holds the run
SELECT no, token, holder, lease_boot, lease_expires, lease_until, sequence, digest, limit_key, run_limit
FROM run WHERE id = ?;

-- take_lease: a new holder, and a token that fences the one before
UPDATE run SET token = token + 1, holder = ?, lease_boot = ?, lease_expires = ?, lease_until = ?, slot = ? WHERE no = ?;

-- renew_lease: pushes the expiry out, if nobody took the run
UPDATE run SET lease_boot = ?, lease_expires = ?, lease_until = ? WHERE id = ? AND token = ? AND holder IS NOT NULL;

-- release_lease: lets go, if the run is still ours
UPDATE run SET holder = NULL, lease_expires = 0, lease_until = 0, slot = NULL WHERE id = ? AND token = ?;

-- held_leases: every lease that was not let go; a migration waits for the live ones
SELECT id, holder, lease_boot, lease_expires, lease_until FROM run WHERE holder IS NOT NULL;

-- read_token: of the last lease
SELECT token FROM run WHERE id = ?;

-- read_blobs: large outputs that a run names
SELECT digest, CAST(body AS BLOB) FROM blob WHERE digest IN (
    SELECT blob FROM event WHERE no > ?1 << 40 AND no < (?1 + 1) << 40 AND blob IS NOT NULL);

-- insert_copied_run: a run as it stood elsewhere, held by nobody; nothing where the id exists
INSERT INTO run (id, name, kind, status, layer, layers, epoch, sequence, digest, plan_revision, token, holder,
                 lease_boot, lease_expires, lease_until, created_at, updated_at, source, root, host, fingerprint,
                 parent_id, labels, queue, priority, ready_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING RETURNING no;

-- insert_copied_checkpoint: a cut, and whether a rollback left it behind; nothing where the id exists
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot, abandoned)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (SELECT 1 FROM checkpoint WHERE id = ?1)
ON CONFLICT (run, sequence) DO NOTHING RETURNING id;

-- find_deletable: how a run stands, and who holds it, before anything of it is removed
SELECT no, sequence, created_at, updated_at, holder, lease_boot, lease_expires, lease_until FROM run WHERE id = ?;

-- delete_blobs: those that only this run uses
DELETE FROM blob WHERE digest IN (
    SELECT blob FROM event WHERE no > ?1 << 40 AND no < (?1 + 1) << 40 AND blob IS NOT NULL)
AND NOT EXISTS (SELECT 1 FROM event WHERE event.blob = blob.digest AND event.run <> ?1);

-- delete_events: the journal of a run
DELETE FROM event WHERE no > ?1 << 40 AND no < (?1 + 1) << 40;

-- delete_plans: all revisions
DELETE FROM plan WHERE run = ?;

-- delete_checkpoints: all cuts
DELETE FROM checkpoint WHERE run = ?;

-- delete_inbox: consumed commands too
DELETE FROM inbox WHERE run = ?;

-- delete_label: all of a run
DELETE FROM label WHERE run = ?;

-- delete_run: the run itself, last
DELETE FROM run WHERE no = ?;

-- insert_type: the name of a type code
INSERT INTO event_type (code, name) VALUES (?, ?) ON CONFLICT (code) DO NOTHING;

-- count_types: whether a newer version with more event types writes here for the first time
SELECT count(*) FROM event_type;

-- insert_fact: something worth knowing about this database
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING;

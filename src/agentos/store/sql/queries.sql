-- Every statement the SQLite store runs, but for PRAGMA, BEGIN, COMMIT and ROLLBACK.
-- `-- name: purpose` begins one; sqlfiles.py reads them.

-- insert_run: a run with its first lease; nothing where the id exists
INSERT INTO run (id, name, kind, digest, plan_revision, holder, lease_boot, lease_expires, lease_until,
                 created_at, updated_at, source, root, host, fingerprint, parent_id, labels,
                 status, layer, layers, epoch, sequence, token)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', 0, 0, 0, 0, 1)
ON CONFLICT (id) DO NOTHING;

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

-- list_runs: newest first, all or (a list as JSON) those with one of the labels; read as far as they are wanted
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels
FROM run WHERE ?1 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?1 END) AS has
    JOIN json_each(?1) AS asked ON asked.value = has.value)
ORDER BY created_at DESC, no DESC;

-- list_runs_in: the same of one stored status
SELECT id, name, kind, status, layer, layers, epoch, sequence, plan_revision, holder, lease_boot, lease_expires,
       lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels, no
FROM run WHERE status = ?2 AND (?1 = '[]' OR EXISTS (
    SELECT 1 FROM json_each(CASE WHEN json_valid(labels) THEN labels ELSE ?1 END) AS has
    JOIN json_each(?1) AS asked ON asked.value = has.value))
ORDER BY created_at DESC, no DESC;

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

-- count_checkpoints: whether there is anything to prune
SELECT count(*) FROM checkpoint WHERE run = ?;

-- insert_command: into the inbox of a run
INSERT INTO inbox (id, run, posted_at, author, attempt_id, body)
SELECT ?2, no, ?3, ?4, ?5, CAST(?6 AS TEXT) FROM run WHERE id = ?1
ON CONFLICT (run, id) DO NOTHING;

-- read_inbox: what was asked and not yet taken up
SELECT i.id, i.posted_at, i.author, i.attempt_id, CAST(i.body AS BLOB)
FROM inbox AS i JOIN run AS r ON r.no = i.run WHERE r.id = ? AND i.consumed_at IS NULL ORDER BY i.no;

-- find_lease: who holds the run
SELECT no, token, holder, lease_boot, lease_expires, lease_until, sequence, digest FROM run WHERE id = ?;

-- take_lease: a new holder, and a token that fences the one before
UPDATE run SET token = token + 1, holder = ?, lease_boot = ?, lease_expires = ?, lease_until = ? WHERE no = ?;

-- renew_lease: pushes the expiry out, if nobody took the run
UPDATE run SET lease_boot = ?, lease_expires = ?, lease_until = ? WHERE id = ? AND token = ? AND holder IS NOT NULL;

-- release_lease: lets go, if the run is still ours
UPDATE run SET holder = NULL, lease_expires = 0, lease_until = 0 WHERE id = ? AND token = ?;

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
                 parent_id, labels)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '', 0, 0, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING RETURNING no;

-- insert_copied_checkpoint: a cut, and whether a rollback left it behind; nothing where the id exists
INSERT INTO checkpoint (id, run, sequence, layer, at, digest, snapshot, abandoned)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (SELECT 1 FROM checkpoint WHERE id = ?1)
ON CONFLICT (run, sequence) DO NOTHING RETURNING id;

-- fence_delete: finds the run and checks the token before anything is removed
SELECT no FROM run WHERE id = ? AND token = ? AND holder IS NOT NULL;

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

-- delete_run: the run itself, last
DELETE FROM run WHERE no = ?;

-- insert_type: the name of a type code
INSERT INTO event_type (code, name) VALUES (?, ?) ON CONFLICT (code) DO NOTHING;

-- count_types: whether a newer version with more event types writes here for the first time
SELECT count(*) FROM event_type;

-- insert_fact: something worth knowing about this database
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING;

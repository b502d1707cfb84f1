-- Every statement the PostgreSQL store runs, but for BEGIN, COMMIT, ROLLBACK and those that lay out a schema.
-- `-- name: purpose` begins one; sqlfiles.py reads them. A pooler may hand each to another session: none relies on what
-- a session was told before. statements.py puts in our schema for $schema, and for $durably what makes the commit of this
-- very statement wait for the disk, or not. $scope stands for the numbers of the scopes that are looked at: the store puts
-- them behind the other arguments.

-- read_session: whom we talk to: through a pooler it is not the process that greeted us
SELECT current_setting('server_encoding'), pg_backend_pid();

-- use_schema: where what is made in this transaction goes, and whose names are meant in it
SELECT set_config('search_path', $1, true);

-- find_scope: the number of a worktree
SELECT no FROM $schema.scope WHERE repository = $1 AND worktree = $2;

-- all_scopes: every worktree one may see
SELECT no FROM $schema.scope;

-- insert_scope: a worktree that begins its first run here
INSERT INTO $schema.scope (repository, worktree) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING $durably;

-- read_version: of the schema
SELECT value FROM $schema.meta WHERE key = 'schema';

-- insert_run: a run with its first lease and its plan; nothing where the id exists, or the schema is another one
WITH made AS (
    INSERT INTO $schema.run (scope, id, name, kind, digest, plan_revision, holder, lease_until, created_at, updated_at, source,
                     root, host, fingerprint, parent_id, labels, status, layer, layers, epoch, sequence, token)
    SELECT $1, $2, $3, $4, $5, CASE WHEN $6::bytea IS NULL THEN 0 ELSE 1 END, $8,
           clock_timestamp() + make_interval(secs => $9), $10, $10, $11, $12, $13, $14, $15, $16, 'pending', 0, 0, 0, 0, 1
    FROM $schema.meta WHERE key = 'schema' AND value = $17
    ON CONFLICT (scope, id) DO NOTHING RETURNING no
), planned AS (
    INSERT INTO $schema.plan (run, revision, body, digest) SELECT no, 1, $6, $7 FROM made WHERE $6::bytea IS NOT NULL
)
SELECT no, $durably FROM made;

-- append: fencing, compare-and-swap on the head of the journal, the progress, the events and the cuts, in one statement
WITH fenced AS (
    UPDATE $schema.run SET sequence = $4, digest = $5, status = $6, layer = $7, layers = $8, epoch = $9, updated_at = $10
    WHERE no = $1 AND token = $2 AND sequence = $3 AND holder IS NOT NULL RETURNING no
), written AS (
    INSERT INTO $schema.event (run, seq, at, type, version, body, plain, blob, digest)
    SELECT f.no, e.seq, e.at, e.type, e.version, e.body, e.plain, decode(e.blob, 'base64'), decode(e.digest, 'base64')
    FROM fenced AS f, json_to_recordset($11::json) AS e (
        seq bigint, at bigint, type smallint, version smallint, body text, plain text, blob text, digest text)
), cut AS (
    INSERT INTO $schema.checkpoint (run, id, sequence, layer, at, digest, snapshot, abandoned)
    SELECT f.no, c.id, c.sequence, c.layer, c.at, decode(c.digest, 'base64'), c.snapshot, c.abandoned
    FROM fenced AS f, json_to_recordset($12::json) AS c (
        id text, sequence bigint, layer integer, at bigint, digest text, snapshot text, abandoned boolean)
)
SELECT f.no, $durably, (
    SELECT pg_notify($13, f.no::text) FROM $schema.follower AS w WHERE w.run = f.no AND w.until > clock_timestamp())
FROM fenced AS f;

-- append_all: the same with all that a batch may bring along: large outputs, a rollback, a plan, commands dealt with
WITH fenced AS (
    UPDATE $schema.run SET sequence = $4, digest = $5, status = $6, layer = $7, layers = $8, epoch = $9, updated_at = $10,
                   plan_revision = coalesce($19, plan_revision)
    WHERE no = $1 AND token = $2 AND sequence = $3 AND holder IS NOT NULL
      AND ($19::integer IS NULL OR plan_revision = $19 - 1) RETURNING no
), written AS (
    INSERT INTO $schema.event (run, seq, at, type, version, body, plain, blob, digest)
    SELECT f.no, e.seq, e.at, e.type, e.version, e.body, e.plain, decode(e.blob, 'base64'), decode(e.digest, 'base64')
    FROM fenced AS f, json_to_recordset($11::json) AS e (
        seq bigint, at bigint, type smallint, version smallint, body text, plain text, blob text, digest text)
), cut AS (
    INSERT INTO $schema.checkpoint (run, id, sequence, layer, at, digest, snapshot, abandoned)
    SELECT f.no, c.id, c.sequence, c.layer, c.at, decode(c.digest, 'base64'), c.snapshot, c.abandoned
    FROM fenced AS f, json_to_recordset($12::json) AS c (
        id text, sequence bigint, layer integer, at bigint, digest text, snapshot text, abandoned boolean)
), kept AS (
    INSERT INTO $schema.blob (run, digest, size, body)
    SELECT f.no, b.digest, octet_length(b.body), b.body FROM fenced AS f, unnest($14::bytea[], $15::text[]) AS b (digest, body)
    ON CONFLICT (run, digest) DO NOTHING
), abandoned AS (
    UPDATE $schema.checkpoint AS c SET abandoned = true FROM fenced AS f, unnest($16::bigint[], $17::bigint[]) AS b (after, before)
    WHERE c.run = f.no AND c.sequence > b.after AND c.sequence < b.before
), planned AS (
    INSERT INTO $schema.plan (run, revision, body, digest) SELECT f.no, $19, $20, $21 FROM fenced AS f WHERE $19 IS NOT NULL
), consumed AS (
    UPDATE $schema.inbox AS i SET consumed_at = $10 FROM fenced AS f
    WHERE i.run = f.no AND i.id = ANY ($18::text[]) AND i.consumed_at IS NULL
)
SELECT f.no, $durably, (
    SELECT pg_notify($13, f.no::text) FROM $schema.follower AS w WHERE w.run = f.no AND w.until > clock_timestamp())
FROM fenced AS f;

-- written_head: how a run stands, for whoever does not know whether its last write arrived
SELECT token, sequence, digest, plan_revision FROM $schema.run WHERE no = $1 AND holder IS NOT NULL;

-- find_head: where the journal of a run stands
SELECT no, sequence, digest FROM $schema.run WHERE id = $1 AND scope = ANY ($scope::bigint[]);

-- find_plan: the number of the newest plan, by the run's own
SELECT plan_revision FROM $schema.run WHERE no = $1;

-- read_events: a stretch of the journal
SELECT seq, at, type, version, convert_to(body, 'UTF8'), blob, digest FROM $schema.event
WHERE run = $1 AND seq > $2 AND seq <= $3 ORDER BY seq;

-- read_digest: the running digest at one place
SELECT digest FROM $schema.event WHERE run = $1 AND seq = $2;

-- read_blob: a large output of a run
SELECT convert_to(body, 'UTF8') FROM $schema.blob WHERE run = $1 AND digest = $2;

-- read_blob_start: the first characters of it
SELECT convert_to(left(body, $3), 'UTF8') FROM $schema.blob WHERE run = $1 AND digest = $2;

-- find_revision: the number of the newest plan
SELECT no, plan_revision FROM $schema.run WHERE id = $1 AND scope = ANY ($scope::bigint[]);

-- read_plan: one revision
SELECT body, digest FROM $schema.plan WHERE run = $1 AND revision = $2;

-- find_runs: by exact id or prefix; the exact one first
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND run.id >= $1 AND run.id < $1 || chr(1114111)
    ORDER BY run.id LIMIT $2) AS r
ORDER BY r.id LIMIT $2;

-- list_runs: newest first, a number of them or (NULL) all, with one of the labels or (NULL) any; taken from the index of
-- each scope, never by sorting it
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND ($2::text[] IS NULL OR run.labels::jsonb ?| $2)
    ORDER BY run.created_at DESC, run.no DESC LIMIT $1::bigint) AS r
ORDER BY r.created_at DESC, r.no DESC LIMIT $1::bigint;

-- list_runs_in: the same of those stored with one of these statuses, each of which has its place in the index
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN unnest($2::text[]) AS w (status)
CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND run.status = w.status AND ($3::text[] IS NULL OR run.labels::jsonb ?| $3)
    ORDER BY run.created_at DESC, run.no DESC LIMIT $1::bigint) AS r
ORDER BY r.created_at DESC, r.no DESC LIMIT $1::bigint;

-- find_checkpoints: by exact id or prefix, the exact one first; with the event that must say the same
SELECT c.id, r.id, c.layer, c.sequence, c.at, c.snapshot, c.abandoned, c.digest,
       e.at, e.type, convert_to(e.body, 'UTF8'), e.digest, s.repository, s.worktree
FROM $schema.checkpoint AS c JOIN $schema.run AS r ON r.no = c.run JOIN $schema.scope AS s ON s.no = r.scope
LEFT JOIN $schema.event AS e ON e.run = c.run AND e.seq = c.sequence
WHERE c.id >= $1 AND c.id < $1 || chr(1114111) AND r.scope = ANY ($scope::bigint[]) ORDER BY c.id LIMIT $2;

-- list_checkpoints: oldest first, with the event that must say the same
SELECT c.id, r.id, c.layer, c.sequence, c.at, c.snapshot, c.abandoned, c.digest,
       e.at, e.type, convert_to(e.body, 'UTF8'), e.digest, s.repository, s.worktree
FROM $schema.run AS r JOIN $schema.scope AS s ON s.no = r.scope JOIN $schema.checkpoint AS c ON c.run = r.no
LEFT JOIN $schema.event AS e ON e.run = c.run AND e.seq = c.sequence
WHERE r.id = $1 AND r.scope = ANY ($scope::bigint[]) ORDER BY c.sequence;

-- prune_checkpoints: what is older than the newest that count; of what a rollback left behind since, as many stay
DELETE FROM $schema.checkpoint WHERE run = $1 AND (
    sequence < (SELECT c.sequence FROM $schema.checkpoint AS c WHERE c.run = $1 AND NOT c.abandoned
                ORDER BY c.sequence DESC LIMIT 1 OFFSET $2 - 1)
    OR abandoned AND sequence < (SELECT c.sequence FROM $schema.checkpoint AS c WHERE c.run = $1 AND c.abandoned
                                 ORDER BY c.sequence DESC LIMIT 1 OFFSET $2 - 1));

-- insert_command: into the inbox of a run, and whoever waits for it is told
WITH posted AS (
    INSERT INTO $schema.inbox (id, run, posted_at, author, attempt_id, body) VALUES ($2, $1, $3, $4, $5, $6)
    ON CONFLICT (run, id) DO NOTHING RETURNING run
)
SELECT pg_notify($7, run::text), $durably FROM posted;

-- read_inbox: what was asked and not yet taken up
SELECT id, posted_at, author, attempt_id, convert_to(body, 'UTF8'), no
FROM $schema.inbox WHERE run = $1 AND consumed_at IS NULL ORDER BY no;

-- read_marks: what changes when somebody writes to these runs: the last event, the last command
SELECT r.no, r.sequence, (SELECT max(i.no) FROM $schema.inbox AS i WHERE i.run = r.no AND i.consumed_at IS NULL)
FROM $schema.run AS r WHERE r.no = ANY ($1::bigint[]);

-- follow: says that somebody wants to be told of these runs' events
INSERT INTO $schema.follower (run, until) SELECT no, clock_timestamp() + make_interval(secs => $2) FROM unnest($1::bigint[]) AS no
ORDER BY no ON CONFLICT (run) DO UPDATE SET until = excluded.until;

-- find_lease: who holds the run
SELECT no, token, holder, lease_until > clock_timestamp(), sequence, digest
FROM $schema.run WHERE id = $1 AND scope = ANY ($scope::bigint[]);

-- take_lease: a new holder, and a token that fences the one before; only if all is as it was seen
UPDATE $schema.run SET token = token + 1, holder = $3, lease_until = clock_timestamp() + make_interval(secs => $4)
WHERE no = $1 AND token = $2 AND (holder IS NULL OR lease_until <= clock_timestamp() OR holder = $5)
  AND EXISTS (SELECT 1 FROM $schema.meta WHERE key = 'schema' AND value = $6) RETURNING no, $durably;

-- renew_lease: pushes the expiry out, if nobody took the run
UPDATE $schema.run SET lease_until = clock_timestamp() + make_interval(secs => $3)
WHERE id = $1 AND token = $2 AND holder IS NOT NULL AND scope = ANY ($scope::bigint[]) RETURNING no;

-- release_lease: lets go, if the run is still ours
UPDATE $schema.run SET holder = NULL, lease_until = 'epoch' WHERE id = $1 AND token = $2 AND scope = ANY ($scope::bigint[]);

-- move_run: to another worktree, for whoever holds its lease; nothing where that has a run of this id
UPDATE $schema.run AS r SET scope = $3, root = $4, host = $5 WHERE no = $1 AND token = $2 AND holder IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM $schema.run AS o WHERE o.scope = $3 AND o.id = r.id AND o.no <> r.no) RETURNING no, $durably;

-- set_source: where its workflow is defined, for whoever holds its lease
UPDATE $schema.run SET source = $3 WHERE no = $1 AND token = $2 AND holder IS NOT NULL RETURNING no, $durably;

-- held_leases: every lease of these scopes, or of all, that was not let go; a migration waits for the live ones
SELECT id, holder, lease_until > clock_timestamp() FROM $schema.run
WHERE holder IS NOT NULL AND ($1::bigint[] IS NULL OR scope = ANY ($1));

-- read_token: of the last lease
SELECT token FROM $schema.run WHERE id = $1 AND scope = ANY ($scope::bigint[]);

-- read_blobs: large outputs that a run names
SELECT digest, convert_to(body, 'UTF8') FROM $schema.blob WHERE run = $1;

-- insert_copied_run: a run as it stood elsewhere, held by nobody; nothing where the id exists
INSERT INTO $schema.run (id, name, kind, status, layer, layers, epoch, sequence, digest, plan_revision, token, holder,
                 lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels, scope)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, NULL, 'epoch', $12, $13, $14, $15, $16, $17, $18, $19,
       ($scope::bigint[])[1]
ON CONFLICT (scope, id) DO NOTHING RETURNING no;

-- insert_plan: one revision of a plan that was copied
INSERT INTO $schema.plan (run, revision, body, digest) VALUES ($1, $2, $3, $4);

-- insert_blob: a large output that was copied
INSERT INTO $schema.blob (run, digest, size, body) VALUES ($1, $2, $3, convert_from($4, 'UTF8'));

-- insert_event: one row of a journal that was copied
INSERT INTO $schema.event (run, seq, at, type, version, body, blob, digest)
VALUES ($1, $2, $3, $4, $5, convert_from($6, 'UTF8'), $7, $8);

-- set_plain: what the views read instead of an event with NUL in it
UPDATE $schema.event SET plain = $3 WHERE run = $1 AND seq = $2;

-- insert_copied_checkpoint: a cut, and whether a rollback left it behind; nothing where the id exists
INSERT INTO $schema.checkpoint (id, run, sequence, layer, at, digest, snapshot, abandoned)
SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE NOT EXISTS (
    SELECT 1 FROM $schema.checkpoint AS c JOIN $schema.run AS r ON r.no = c.run WHERE c.id = $1 AND r.scope = ANY ($scope::bigint[]))
ON CONFLICT (run, sequence) DO NOTHING RETURNING id;

-- fence_delete: finds the run, checks the token, and holds both until all is removed
SELECT no FROM $schema.run WHERE id = $1 AND token = $2 AND holder IS NOT NULL AND scope = ANY ($scope::bigint[]) FOR UPDATE;

-- delete_blobs: large outputs
DELETE FROM $schema.blob WHERE run = $1;

-- delete_events: the journal of a run
DELETE FROM $schema.event WHERE run = $1;

-- delete_plans: all revisions
DELETE FROM $schema.plan WHERE run = $1;

-- delete_checkpoints: all cuts
DELETE FROM $schema.checkpoint WHERE run = $1;

-- delete_inbox: consumed commands too
DELETE FROM $schema.inbox WHERE run = $1;

-- delete_followers: nobody follows a run that is gone
DELETE FROM $schema.follower WHERE run = $1;

-- delete_run: the run itself, last of all
DELETE FROM $schema.run WHERE no = $1;

-- insert_type: the name of a type code
INSERT INTO $schema.event_type (code, name) VALUES ($1, $2) ON CONFLICT (code) DO NOTHING;

-- count_types: whether a newer version with more event types writes here for the first time
SELECT count(*) FROM $schema.event_type;

-- set_fact: something worth knowing about this schema
INSERT INTO $schema.meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- size: bytes on disk of all tables with their indexes
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r';

-- tables_of: what a schema holds, whether it exists at all, and whether we may use it
SELECT n.nspname, c.relname, has_schema_privilege(n.oid, 'USAGE')
FROM pg_namespace AS n LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
WHERE n.nspname = $1 ORDER BY c.relname;

-- views_of: the views of a schema
SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'v';

-- lock_layout: one process at a time changes a schema of this name
SELECT pg_advisory_xact_lock(hashtextextended('agentos ' || $1, 0));

-- read_facts: whose schema this is, and its version
SELECT key, value FROM $schema.meta WHERE key IN ('application', 'schema');

-- columns_of: of a table
SELECT a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2 AND a.attnum > 0 AND NOT a.attisdropped;

-- find_made: a run that was just made by this process and nobody wrote to, by all that it was made with
SELECT no FROM $schema.run WHERE id = $1 AND holder = $2 AND created_at = $3 AND fingerprint = $4 AND token = 1 AND sequence = 0
AND scope = ANY ($scope::bigint[]);

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
                     root, host, fingerprint, parent_id, labels, limit_key, run_limit, slot, status, layer, layers, epoch,
                     sequence, token)
    SELECT $1, $2, $3, $4, $5, CASE WHEN $6::bytea IS NULL THEN 0 ELSE 1 END, $8,
           clock_timestamp() + make_interval(secs => $9), $10, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, 'pending',
           0, 0, 0, 0, 1
    FROM $schema.meta WHERE key = 'schema' AND value = $20
    ON CONFLICT (scope, id) DO NOTHING RETURNING no
), planned AS (
    INSERT INTO $schema.plan (run, revision, body, digest) SELECT no, 1, $6, $7 FROM made WHERE $6::bytea IS NOT NULL
), labelled AS (
    INSERT INTO $schema.label (scope, label, created_at, run)
    SELECT DISTINCT $1::bigint, l.value, $10::bigint, m.no FROM made AS m, jsonb_array_elements_text($16::jsonb) AS l (value)
)
SELECT no, $durably FROM made;

-- submit_run: a run that nobody drives yet, and its plan; nothing where the id exists, or the schema is another one. It
-- may be taken from a moment on (microseconds), or (NULL) in so many seconds from now
WITH made AS (
    INSERT INTO $schema.run (scope, id, name, kind, digest, plan_revision, created_at, updated_at, source, root, host,
                     fingerprint, parent_id, labels, limit_key, run_limit, queue, priority, ready_at, submitted_from, holder,
                     lease_until, status, layer, layers, epoch, sequence, token)
    SELECT $1, $2, $3, $4, $5, CASE WHEN $6::bytea IS NULL THEN 0 ELSE 1 END, $8, $8, $9, $10, $11, $12, $13, $14, $15, $16,
           $17, $18, coalesce($19, (extract(epoch FROM clock_timestamp() + make_interval(secs => $20)) * 1000000)::bigint),
           $21, NULL, 'epoch', 'queued', 0, 0, 0, 0, 0
    FROM $schema.meta WHERE key = 'schema' AND value = $22
    ON CONFLICT (scope, id) DO NOTHING RETURNING no
), planned AS (
    INSERT INTO $schema.plan (run, revision, body, digest) SELECT no, 1, $6, $7 FROM made WHERE $6::bytea IS NOT NULL
), labelled AS (
    INSERT INTO $schema.label (scope, label, created_at, run)
    SELECT DISTINCT $1::bigint, l.value, $8::bigint, m.no FROM made AS m, jsonb_array_elements_text($14::jsonb) AS l (value)
)
SELECT no, $durably FROM made;

-- find_submitted: a run that was just submitted and nobody took, by what it was made with
SELECT no FROM $schema.run WHERE id = $1 AND created_at = $2 AND fingerprint = $3 AND status = 'queued'
AND scope = ANY ($scope::bigint[]);

-- read_waiting: how those of these runs (a list as JSON) were submitted that have not begun
SELECT r.id, s.repository, s.worktree, r.queue, r.priority, r.ready_at, r.limit_key, r.run_limit, r.submitted_from
FROM $schema.run AS r JOIN $schema.scope AS s ON s.no = r.scope
WHERE r.status = 'queued' AND r.id IN (SELECT json_array_elements_text($1::json)) AND r.scope = ANY ($scope::bigint[]);

-- next_queued: a few submitted runs of these queues that may be taken, of these workflows and with one of these labels (NULL
-- is any), but for those passed over (id and sequence) and those of keys that are full; by these dead holders or nobody's.
-- Locked until the transaction ends, without those that another worker has locked; the first to go first
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree,
       r.queue, r.priority, r.ready_at, r.limit_key, r.run_limit, r.submitted_from, r.no, r.token, r.digest, r.lease_until
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN unnest($2::text[]) AS q (queue)
CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND run.status = 'queued' AND run.queue = q.queue
    AND run.ready_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    AND (run.holder IS NULL OR run.lease_until <= clock_timestamp() OR run.holder = ANY ($8::text[]))
    AND ($3::text[] IS NULL OR run.name = ANY ($3))
    AND ($4::text[] IS NULL OR run.labels::jsonb ?| $4)
    AND NOT EXISTS (SELECT 1 FROM unnest($5::text[], $6::bigint[]) AS past (id, sequence)
                    WHERE past.id = run.id AND past.sequence = run.sequence)
    AND (run.limit_key IS NULL OR run.limit_key <> ALL ($7::text[]))
    ORDER BY run.priority DESC, run.created_at, run.no LIMIT $1::bigint FOR UPDATE SKIP LOCKED) AS r
ORDER BY r.priority DESC, r.created_at, r.no;

-- next_undriven: the same of runs whose driver may have died
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree,
       r.queue, r.priority, r.ready_at, r.limit_key, r.run_limit, r.submitted_from, r.no, r.token, r.digest, r.lease_until
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no
CROSS JOIN unnest($9::text[]) AS w (status) CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND run.status = w.status AND run.kind = 'workflow'
    AND coalesce(run.queue, '') = ANY ($2::text[])
    AND (run.holder IS NULL OR run.lease_until <= clock_timestamp() OR run.holder = ANY ($8::text[]))
    AND ($3::text[] IS NULL OR run.name = ANY ($3))
    AND ($4::text[] IS NULL OR run.labels::jsonb ?| $4)
    AND NOT EXISTS (SELECT 1 FROM unnest($5::text[], $6::bigint[]) AS past (id, sequence)
                    WHERE past.id = run.id AND past.sequence = run.sequence)
    AND (run.limit_key IS NULL OR run.limit_key <> ALL ($7::text[]))
    ORDER BY coalesce(run.priority, 0) DESC, run.created_at, run.no LIMIT $1::bigint FOR UPDATE SKIP LOCKED) AS r
ORDER BY coalesce(r.priority, 0) DESC, r.created_at, r.no;

-- take_runs: new holders for runs that this transaction has locked, each with its slot
UPDATE $schema.run AS r SET token = r.token + 1, holder = $3, lease_until = clock_timestamp() + make_interval(secs => $4),
                 slot = t.slot
FROM unnest($1::bigint[], $2::integer[]) AS t (no, slot)
WHERE r.no = t.no AND EXISTS (SELECT 1 FROM $schema.meta WHERE key = 'schema' AND value = $5) RETURNING r.no;

-- held_slots: of one limit, or of all: runs that count, if their lease is still good
SELECT no, id, limit_key, run_limit, slot, holder, lease_until > clock_timestamp(), token
FROM $schema.run WHERE slot IS NOT NULL AND ($1::text IS NULL OR limit_key = $1);

-- queued_of_limit: submitted runs of a limit that have not begun
SELECT id FROM $schema.run WHERE status = 'queued' AND limit_key = $1 ORDER BY created_at, no;

-- free_slot: of a run whose lease is over, if that is still so, or its holder (NULL: unknown) is dead; should its driver
-- come back, it finds that it may not write
UPDATE $schema.run SET slot = NULL, token = token + 1
WHERE no = $1 AND token = $2 AND (lease_until <= clock_timestamp() OR holder = $3);

-- return_lease: a lease that was taken in vain, as it was found
UPDATE $schema.run SET holder = $3, lease_until = $4, slot = NULL
WHERE id = $1 AND token = $2 AND scope = ANY ($scope::bigint[]);

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

-- append_all: the same with all that a batch may bring along: large outputs, a rollback, a plan, commands dealt with,
-- what it asks now (NULL: as before), in which statuses tasks were left
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
), unasked AS (
    DELETE FROM $schema.question AS q USING fenced AS f WHERE q.run = f.no AND q.seq <> ALL ($22::bigint[])
), asked AS (
    INSERT INTO $schema.question (run, seq) SELECT f.no, s.seq FROM fenced AS f, unnest($22::bigint[]) AS s (seq)
    ON CONFLICT DO NOTHING
), ended AS (
    DELETE FROM $schema.task_left AS t USING fenced AS f WHERE t.run = f.no AND t.status <> ALL ($23::text[])
), has_left AS (
    INSERT INTO $schema.task_left (run, status) SELECT f.no, s.status FROM fenced AS f, unnest($23::text[]) AS s (status)
    ON CONFLICT DO NOTHING
)
SELECT f.no, $durably, (
    SELECT pg_notify($13, f.no::text) FROM $schema.follower AS w WHERE w.run = f.no AND w.until > clock_timestamp())
FROM fenced AS f;

-- written_head: how a run stands, for whoever does not know whether its last write arrived
SELECT token, sequence, digest, plan_revision FROM $schema.run WHERE no = $1 AND holder IS NOT NULL;

-- read_clock: the time that schedules go by, in microseconds
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- has_schedules: whether this schema has them; an older one that is only read does not
SELECT count(*) FROM pg_catalog.pg_tables WHERE schemaname = $1 AND tablename = 'schedule';

-- list_schedules: of a repository, or (NULL) of all, by name, removed ones too
SELECT name, version, active, cron, state, begins, changed_at, repository, worktree FROM $schema.schedule
WHERE $1::text IS NULL OR repository = $1 ORDER BY name, repository;

-- read_schedule_plan: what its runs are planned as
SELECT plan FROM $schema.schedule WHERE repository = $1 AND name = $2;

-- insert_schedule: a new one; nothing where the repository has one of that name
INSERT INTO $schema.schedule (repository, worktree, name, active, cron, state, begins, changed_at, plan, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1) ON CONFLICT (repository, name) DO NOTHING;

-- change_schedule: in the place of the version that was read
UPDATE $schema.schedule SET worktree = $2, active = $4, cron = $5, state = $6, begins = $7, changed_at = $8,
                 plan = coalesce($9, plan), version = version + 1
WHERE repository = $1 AND name = $3 AND version = $10;

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

-- list_runs: newest first, a number of them or (NULL) all, with one of the labels or (NULL) any, of this name, with this
-- text in id or name, behind this moment and run; taken from the index of each scope, never by sorting it
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no
    AND (run.created_at, run.no) < ($5::bigint, coalesce((SELECT b.no FROM $schema.run AS b
        JOIN $schema.scope AS t ON t.no = b.scope WHERE b.id = $6 AND t.repository = $7 AND t.worktree = $8), 9223372036854775807))
    AND ($3::text IS NULL OR run.name = $3)
    AND ($4::text IS NULL OR strpos(lower(run.id), lower($4 COLLATE "C")) > 0
         OR strpos(lower(run.name COLLATE "C"), lower($4 COLLATE "C")) > 0)
    AND ($2::text[] IS NULL OR run.labels::jsonb ?| $2)
    ORDER BY run.created_at DESC, run.no DESC LIMIT $1::bigint) AS r
ORDER BY r.created_at DESC, r.no DESC LIMIT $1::bigint;

-- list_runs_in: the same of those stored with one of these statuses, each of which has its place in the index
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no CROSS JOIN unnest($9::text[]) AS w (status)
CROSS JOIN LATERAL (
    SELECT * FROM $schema.run WHERE run.scope = o.no AND run.status = w.status
    AND (run.created_at, run.no) < ($5::bigint, coalesce((SELECT b.no FROM $schema.run AS b
        JOIN $schema.scope AS t ON t.no = b.scope WHERE b.id = $6 AND t.repository = $7 AND t.worktree = $8), 9223372036854775807))
    AND ($3::text IS NULL OR run.name = $3)
    AND ($4::text IS NULL OR strpos(lower(run.id), lower($4 COLLATE "C")) > 0
         OR strpos(lower(run.name COLLATE "C"), lower($4 COLLATE "C")) > 0)
    AND ($2::text[] IS NULL OR run.labels::jsonb ?| $2)
    ORDER BY run.created_at DESC, run.no DESC LIMIT $1::bigint) AS r
ORDER BY r.created_at DESC, r.no DESC LIMIT $1::bigint;

-- list_labelled: the same of those with one of the labels, in any status or (NULL) all; each by the first that it has
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree
FROM unnest($scope::bigint[]) AS o (no) JOIN $schema.scope AS s ON s.no = o.no
CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS w (label, place) CROSS JOIN LATERAL (
    SELECT run.* FROM $schema.label AS l JOIN $schema.run ON run.no = l.run WHERE l.scope = o.no AND l.label = w.label
    AND (l.created_at, l.run) < ($5::bigint, coalesce((SELECT b.no FROM $schema.run AS b
        JOIN $schema.scope AS t ON t.no = b.scope WHERE b.id = $6 AND t.repository = $7 AND t.worktree = $8), 9223372036854775807))
    AND ($3::text IS NULL OR run.name = $3)
    AND ($4::text IS NULL OR strpos(lower(run.id), lower($4 COLLATE "C")) > 0
         OR strpos(lower(run.name COLLATE "C"), lower($4 COLLATE "C")) > 0)
    AND ($9::text[] IS NULL OR run.status = ANY ($9))
    AND NOT run.labels::jsonb ?| ($2::text[])[:w.place - 1]
    ORDER BY l.created_at DESC, l.run DESC LIMIT $1::bigint) AS r
ORDER BY r.created_at DESC, r.no DESC LIMIT $1::bigint;

-- open_questions: what runs under way ask, newest runs first; with the events that ask it, and the digests before them
SELECT r.id, r.name, r.kind, r.status, r.layer, r.layers, r.epoch, r.sequence, r.plan_revision, r.holder,
       r.lease_until > clock_timestamp(), (extract(epoch FROM r.lease_until) * 1000000)::bigint,
       r.created_at, r.updated_at, r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels, s.repository, s.worktree,
       q.seq, e.at, e.type, e.version, convert_to(e.body, 'UTF8'), e.blob, e.digest, p.digest
FROM $schema.question AS q JOIN $schema.run AS r ON r.no = q.run JOIN $schema.scope AS s ON s.no = r.scope
LEFT JOIN $schema.event AS e ON e.run = q.run AND e.seq = q.seq
LEFT JOIN $schema.event AS p ON p.run = q.run AND p.seq = q.seq - 1
WHERE r.kind = 'workflow' AND r.status IN ('pending', 'running', 'waiting', 'paused') AND r.scope = ANY ($scope::bigint[])
ORDER BY r.created_at DESC, r.no DESC, q.seq;

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

-- prune_runs: the same of many runs: how many checkpoints each had, and how many of these went
WITH asked AS (
    SELECT no, id FROM $schema.run WHERE id = ANY ($1::text[]) AND scope = ANY ($scope::bigint[])
), counted AS (
    SELECT a.no, a.id, (SELECT count(*) FROM $schema.checkpoint AS c WHERE c.run = a.no) AS cuts FROM asked AS a
), gone AS (
    DELETE FROM $schema.checkpoint AS p USING counted AS a WHERE p.run = a.no AND a.cuts > $2 AND (
        p.sequence < (SELECT c.sequence FROM $schema.checkpoint AS c WHERE c.run = a.no AND NOT c.abandoned
                      ORDER BY c.sequence DESC LIMIT 1 OFFSET $2 - 1)
        OR p.abandoned AND p.sequence < (SELECT c.sequence FROM $schema.checkpoint AS c WHERE c.run = a.no AND c.abandoned
                                         ORDER BY c.sequence DESC LIMIT 1 OFFSET $2 - 1))
    RETURNING p.run
)
SELECT a.id, a.cuts, coalesce(g.cuts, 0) FROM counted AS a
LEFT JOIN (SELECT run, count(*) AS cuts FROM gone GROUP BY run) AS g ON g.run = a.no;

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
SELECT no, token, holder, lease_until > clock_timestamp(), sequence, digest, limit_key, run_limit
FROM $schema.run WHERE id = $1 AND scope = ANY ($scope::bigint[]);

-- take_lease: a new holder, and a token that fences the one before; only if all is as it was seen
UPDATE $schema.run SET token = token + 1, holder = $3, lease_until = clock_timestamp() + make_interval(secs => $4), slot = $7
WHERE no = $1 AND token = $2 AND (holder IS NULL OR lease_until <= clock_timestamp() OR holder = $5)
  AND EXISTS (SELECT 1 FROM $schema.meta WHERE key = 'schema' AND value = $6) RETURNING no, $durably;

-- renew_lease: pushes the expiry out, if nobody took the run
UPDATE $schema.run SET lease_until = clock_timestamp() + make_interval(secs => $3)
WHERE id = $1 AND token = $2 AND holder IS NOT NULL AND scope = ANY ($scope::bigint[]) RETURNING no;

-- release_lease: lets go, if the run is still ours
UPDATE $schema.run SET holder = NULL, lease_until = 'epoch', slot = NULL WHERE id = $1 AND token = $2 AND scope = ANY ($scope::bigint[]);

-- move_run: to another worktree, for whoever holds its lease; nothing where that has a run of this id
WITH moved AS (
    UPDATE $schema.run AS r SET scope = $3, root = $4, host = $5 WHERE no = $1 AND token = $2 AND holder IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM $schema.run AS o WHERE o.scope = $3 AND o.id = r.id AND o.no <> r.no) RETURNING no
), labelled AS (
    UPDATE $schema.label AS l SET scope = $3 FROM moved AS m WHERE l.run = m.no
)
SELECT no, $durably FROM moved;

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
                 lease_until, created_at, updated_at, source, root, host, fingerprint, parent_id, labels, queue, priority,
                 ready_at, scope)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, NULL, 'epoch', $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
       ($scope::bigint[])[1]
ON CONFLICT (scope, id) DO NOTHING RETURNING no;

-- insert_plan: one revision of a plan that was copied
INSERT INTO $schema.plan (run, revision, body, digest) VALUES ($1, $2, $3, $4);

-- insert_blob: a large output that was copied
INSERT INTO $schema.blob (run, digest, size, body) VALUES ($1, $2, $3, convert_from($4, 'UTF8'));

-- insert_event: one row of a journal that was copied
INSERT INTO $schema.event (run, seq, at, type, version, body, blob, digest)
VALUES ($1, $2, $3, $4, $5, convert_from($6, 'UTF8'), $7, $8);

-- insert_label: one of a run that was copied
INSERT INTO $schema.label (scope, label, created_at, run) SELECT scope, $1, $2, no FROM $schema.run WHERE no = $3
ON CONFLICT DO NOTHING;

-- insert_question: an event of such a run that asks something, or 0
INSERT INTO $schema.question (run, seq) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- insert_task_left: a status in which such a run has tasks, or may have
INSERT INTO $schema.task_left (run, status) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- set_plain: what the views read instead of an event with NUL in it
UPDATE $schema.event SET plain = $3 WHERE run = $1 AND seq = $2;

-- insert_copied_checkpoint: a cut, and whether a rollback left it behind; nothing where the id exists
INSERT INTO $schema.checkpoint (id, run, sequence, layer, at, digest, snapshot, abandoned)
SELECT $1, $2, $3, $4, $5, $6, $7, $8 WHERE NOT EXISTS (
    SELECT 1 FROM $schema.checkpoint AS c JOIN $schema.run AS r ON r.no = c.run WHERE c.id = $1 AND r.scope = ANY ($scope::bigint[]))
ON CONFLICT (run, sequence) DO NOTHING RETURNING id;

-- known_ids: which of these runs there are
SELECT id FROM $schema.run WHERE id = ANY ($1::text[]) AND scope = ANY ($scope::bigint[]);

-- lock_runs: how they stand, and who holds them, until all that is meant is removed; but for those just being written to
SELECT id, no, sequence, created_at, updated_at, holder, lease_until > clock_timestamp() FROM $schema.run
WHERE id = ANY ($1::text[]) AND scope = ANY ($scope::bigint[]) ORDER BY no FOR UPDATE SKIP LOCKED;

-- delete_blobs: large outputs
DELETE FROM $schema.blob WHERE run = ANY ($1::bigint[]);

-- delete_events: the journals of some runs
DELETE FROM $schema.event WHERE run = ANY ($1::bigint[]);

-- delete_plans: all revisions
DELETE FROM $schema.plan WHERE run = ANY ($1::bigint[]);

-- delete_checkpoints: all cuts
DELETE FROM $schema.checkpoint WHERE run = ANY ($1::bigint[]);

-- delete_inbox: consumed commands too
DELETE FROM $schema.inbox WHERE run = ANY ($1::bigint[]);

-- delete_followers: nobody follows a run that is gone
DELETE FROM $schema.follower WHERE run = ANY ($1::bigint[]);

-- delete_labels: all of them
DELETE FROM $schema.label WHERE run = ANY ($1::bigint[]);

-- delete_questions: what they asked
DELETE FROM $schema.question WHERE run = ANY ($1::bigint[]);

-- delete_tasks_left: the statuses of their tasks
DELETE FROM $schema.task_left WHERE run = ANY ($1::bigint[]);

-- delete_runs: the runs themselves, last of all
DELETE FROM $schema.run WHERE no = ANY ($1::bigint[]);

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

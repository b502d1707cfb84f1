-- Views for SQL typed by hand. Their names and columns are stable: runs, tasks, events, workflow_checkpoint.
-- They show what the views on SQLite show (store/sql/views.sql tells why each part is as it is), with values as JSONB and
-- two columns more, for the worktree a run belongs to.
-- Type codes: 3 resume_planned, 9 task_start, 11 task_retry, 12 task_complete, 13 task_error, 14 task_skipped,
-- 19 decision_required, 20 decision_made, 24 plan_changed, 25 rolled_back, 26 run_forked, 27 state_saved.

-- Inside: a time as text.
CREATE OR REPLACE FUNCTION _utc(at bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT to_char(timestamp 'epoch' + at * interval '1 microsecond', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;

-- Inside: a list, or an empty one for whatever else is there.
CREATE OR REPLACE FUNCTION _list(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END $$;

-- Inside: a map, or an empty one.
CREATE OR REPLACE FUNCTION _map(value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE jsonb_typeof(value) WHEN 'object' THEN value ELSE '{}' END $$;

-- Inside: events that change what others mean, found through the index event_turn (which wants this very condition).
CREATE VIEW _turn AS
SELECT run, seq, type, coalesce(plain, body)::jsonb AS body FROM event WHERE type = 3 OR type BETWEEN 24 AND 26;

-- Inside: what each rollback leaves behind: the events between `after` and `before`.
CREATE VIEW _abandoned AS
SELECT run, (body ->> 'to_seq')::bigint AS after, seq AS before FROM _turn WHERE type = 25;

-- Runs as listed. `number` grows with each run that is begun here: what is sorted by it comes from an index.
-- Judged by the clock of the server alone: a run whose driver was killed is `running` until its lease ends. Not by
-- clock_timestamp(), which is volatile: the planner would make all rows before it sorts or leaves out any.
CREATE VIEW runs AS
SELECT r.id AS workflow_id, r.name, r.kind,
       CASE WHEN r.status IN ('pending', 'running') AND (r.holder IS NULL OR r.lease_until < statement_timestamp())
            THEN 'interrupted' WHEN r.status = 'queued' THEN 'pending' ELSE r.status END AS status,
       r.layer, r.layers, r.epoch, r.sequence, _utc(r.created_at) AS created_at, _utc(r.updated_at) AS updated_at,
       r.source, r.root, r.host, r.fingerprint, r.parent_id, r.labels::jsonb AS labels, r.plan_revision,
       r.holder::jsonb AS holder, s.repository, s.worktree, r.no AS number,
       r.queue, r.priority, _utc(r.ready_at) AS ready_at
FROM run AS r JOIN scope AS s ON s.no = r.scope;

-- The journal with type names, and large outputs put back in place.
CREATE VIEW events AS
SELECT r.id AS workflow_id, e.seq, _utc(e.at) AS at, coalesce(t.name, e.type::text) AS type, e.version,
       CASE WHEN e.blob IS NULL THEN coalesce(e.plain, e.body)::jsonb
            ELSE jsonb_set(coalesce(e.plain, e.body)::jsonb, ARRAY[CASE e.type WHEN 24 THEN 'items' ELSE 'output' END],
                           (SELECT b.body::jsonb FROM blob AS b WHERE b.run = e.run AND b.digest = e.blob)) END AS body,
       s.repository, s.worktree
FROM run AS r JOIN scope AS s ON s.no = r.scope JOIN event AS e ON e.run = r.no
LEFT JOIN event_type AS t ON t.code = e.type;

-- Inside: of each run what happened last to each of its tasks. Folded run by run: whoever asks for some runs reads their
-- rows alone.
CREATE VIEW _mark AS
SELECT r.no AS run, r.id, r.status AS run_status, m.task_id, m.type, m.body, m.blob, m.attempts, s.repository, s.worktree
FROM run AS r JOIN scope AS s ON s.no = r.scope CROSS JOIN LATERAL (
    WITH live AS (
        SELECT e.seq, e.type, coalesce(e.plain, e.body)::jsonb AS body, e.blob FROM event AS e
        WHERE e.run = r.no AND e.type IN (3, 9, 11, 12, 13, 14, 19, 20, 24, 26)
          AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = r.no AND b.before > e.seq AND b.after < e.seq)
    ),
    mark AS (
        SELECT seq, type::integer AS type, body ->> 'task_id' AS task_id, body, blob FROM live
        WHERE type IN (9, 11, 12, 13, 14, 19, 20)
        UNION ALL
        SELECT l.seq, CASE x.value ->> 'type' WHEN 'task_complete' THEN 12 WHEN 'task_error' THEN 13 ELSE 14 END,
               x.value ->> 'task_id', x.value, NULL
        FROM live AS l, jsonb_array_elements(_list(l.body -> 'results')) AS x WHERE l.type = 26
        UNION ALL
        SELECT l.seq, 3, x.value, '{}', NULL
        FROM live AS l, jsonb_array_elements_text(_list(l.body -> 'reset')) AS x WHERE l.type = 3
        UNION ALL
        SELECT l.seq, 3, x.value, '{}', NULL
        FROM live AS l, jsonb_array_elements_text(_list(l.body -> 'cut_off')) AS x WHERE l.type = 3
        UNION ALL
        SELECT l.seq, 24, x.value, '{}', NULL
        FROM live AS l, jsonb_array_elements_text(_list(l.body -> 'removed')) AS x WHERE l.type = 24
        UNION ALL
        SELECT l.seq, 24, k.value, '{}', NULL
        FROM live AS l, jsonb_array_elements_text(_list(l.body -> 'regrown')) AS x, live AS o,
             jsonb_array_elements_text(_list(o.body -> 'children')) AS k
        WHERE l.type = 3 AND o.type = 24 AND o.seq < l.seq AND o.body ->> 'parent' = x.value
        UNION ALL
        SELECT seq, 9, body ->> 'parent', '{}', NULL FROM live WHERE type = 24 AND body ->> 'origin' = 'for_each'
    )
    SELECT DISTINCT ON (task_id) task_id, type, body, blob,
           sum(CASE WHEN type = 9 AND body <> '{}' THEN 1 ELSE 0 END) OVER (PARTITION BY task_id) AS attempts
    FROM mark WHERE task_id IS NOT NULL ORDER BY task_id, seq DESC
) AS m WHERE m.type <> 24;

-- Each task that anything has happened to, as it stands at the head of its run. The output of a fan-out (for_each) is
-- NULL here: it is the list of its items' outputs. In three parts, so that whoever asks for a status finds the few runs
-- that have such tasks: what is complete; what runs that have ended left, in the statuses that task_left says they may
-- have; and what is not complete of runs under way.
CREATE VIEW tasks AS
SELECT m.id AS workflow_id, m.task_id, (m.body ->> 'layer')::integer AS layer, 'complete' AS status, m.attempts,
       CASE WHEN m.body -> 'gathered' = 'true' THEN NULL
            ELSE coalesce((SELECT b.body::jsonb FROM blob AS b WHERE b.run = m.run AND b.digest = m.blob),
                          m.body -> 'output', 'null') END AS output,
       NULL::jsonb AS error, coalesce((m.body ->> 'execution_time_ms')::double precision, 0.0) AS execution_time_ms,
       NULL AS because, m.repository, m.worktree
FROM _mark AS m WHERE m.type = 12
UNION ALL
SELECT m.id, m.task_id, (m.body ->> 'layer')::integer, k.status, m.attempts, NULL,
       CASE WHEN m.type IN (11, 13) THEN m.body -> 'error' END,
       CASE m.type WHEN 13 THEN coalesce((m.body ->> 'execution_time_ms')::double precision, 0.0) END,
       CASE m.type WHEN 14 THEN coalesce(m.body ->> 'because', '') END, m.repository, m.worktree
FROM task_left AS k JOIN _mark AS m ON m.run = k.run
WHERE m.run_status IN ('complete', 'failed', 'aborted') AND m.type <> 12
  AND k.status = CASE m.type WHEN 9 THEN 'running' WHEN 11 THEN 'retrying' WHEN 14 THEN 'skipped' WHEN 19 THEN 'waiting'
                               WHEN 13 THEN coalesce(m.body ->> 'status', 'failed') ELSE 'pending' END
UNION ALL
SELECT m.id, m.task_id, (m.body ->> 'layer')::integer,
       CASE m.type WHEN 9 THEN 'running' WHEN 11 THEN 'retrying' WHEN 14 THEN 'skipped' WHEN 19 THEN 'waiting'
                   WHEN 13 THEN coalesce(m.body ->> 'status', 'failed') ELSE 'pending' END,
       m.attempts, NULL,
       CASE WHEN m.type IN (11, 13) THEN m.body -> 'error' END,
       CASE m.type WHEN 13 THEN coalesce((m.body ->> 'execution_time_ms')::double precision, 0.0) END,
       CASE m.type WHEN 14 THEN coalesce(m.body ->> 'because', '') END, m.repository, m.worktree
FROM _mark AS m WHERE m.run_status IN ('pending', 'running', 'waiting', 'paused') AND m.type <> 12;

-- Inside: the state at a cut, folded from the journal up to its sequence. What a rollback left behind does not count.
-- A function of its own, since a server that compiles expensive queries would take seconds to compile this one.
CREATE OR REPLACE FUNCTION _state(of_run bigint, upto bigint, cut_layer integer, run_id text, run_kind text)
RETURNS jsonb LANGUAGE sql STABLE SET jit = off
BEGIN ATOMIC
SELECT
       CASE run_kind WHEN 'states' THEN (
           WITH saved AS MATERIALIZED (
               SELECT e.seq, coalesce(e.plain, e.body)::jsonb AS body FROM event AS e
               WHERE e.run = of_run AND e.seq <= upto AND e.type = 27
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = of_run AND b.before <= upto
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           -- An element counts until a later save begins at its place or before.
           list AS (
               SELECT s.seq, f.field, _list(s.body -> f.field) AS added,
                      coalesce((s.body ->> (f.field || '_from'))::integer, 0) AS start
               FROM saved AS s, unnest(ARRAY['messages', 'tasks', 'decisions']) AS f (field)
           ),
           span AS (
               SELECT seq, field, added, start, min(start) OVER (
                          PARTITION BY field ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS stop
               FROM list
           ),
           lists AS (
               SELECT s.field, jsonb_agg(x.value ORDER BY s.seq, x.place) AS elements
               FROM span AS s, jsonb_array_elements(s.added) WITH ORDINALITY AS x (value, place)
               WHERE s.stop IS NULL OR s.start + x.place - 1 < s.stop GROUP BY s.field
           ),
           entry AS (
               SELECT DISTINCT ON (key) key, value FROM (
                   SELECT x.key, 2 * s.seq + 1 AS rank, x.value
                   FROM saved AS s, jsonb_each(_map(s.body -> 'context_set')) AS x
                   UNION ALL
                   SELECT x.value, 2 * s.seq, NULL
                   FROM saved AS s, jsonb_array_elements_text(_list(s.body -> 'context_removed')) AS x
               ) AS said ORDER BY key, rank DESC
           )
           SELECT jsonb_build_object(
               'workflow_id', run_id,
               'current_layer', (SELECT body -> 'current_layer' FROM saved ORDER BY seq DESC LIMIT 1),
               'messages', coalesce((SELECT elements FROM lists WHERE field = 'messages'), '[]'),
               'tasks', coalesce((SELECT elements FROM lists WHERE field = 'tasks'), '[]'),
               'decisions', coalesce((SELECT elements FROM lists WHERE field = 'decisions'), '[]'),
               'context', (SELECT coalesce(jsonb_object_agg(key, value) FILTER (WHERE value IS NOT NULL), '{}') FROM entry))
       ) ELSE (
           WITH journal AS MATERIALIZED (
               SELECT e.seq, e.type, coalesce(e.plain, e.body)::jsonb AS body, e.blob FROM event AS e
               WHERE e.run = of_run AND e.seq <= upto AND e.type IN (9, 11, 12, 13, 14, 19, 20)
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = of_run AND b.before <= upto
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           turn AS MATERIALIZED (
               SELECT e.seq, e.type, e.body FROM _turn AS e WHERE e.run = of_run AND e.seq <= upto
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = of_run AND b.before <= upto
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           -- Fan-outs: the items of each expansion, and where (if anywhere) the list was given up to be made anew.
           fan AS MATERIALIZED (
               SELECT parent, children, lead(seq) OVER expansion IS NULL AS newest,
                      lead(CASE WHEN children IS NULL THEN seq END) OVER expansion AS regrown
               FROM (
                   SELECT seq, 0::bigint AS place, body ->> 'parent' AS parent, _list(body -> 'children') AS children
                   FROM turn WHERE type = 24 AND body ->> 'origin' = 'for_each'
                   UNION ALL
                   SELECT t.seq, x.place, x.value ->> 'parent', _list(x.value -> 'children')
                   FROM turn AS t, jsonb_array_elements(_list(t.body -> 'changes')) WITH ORDINALITY AS x (value, place)
                   WHERE t.type = 26 AND x.value ->> 'origin' = 'for_each'
                   UNION ALL
                   SELECT t.seq, 0, x.value, NULL
                   FROM turn AS t, jsonb_array_elements_text(_list(t.body -> 'regrown')) AS x WHERE t.type = 3
               ) AS expansions WINDOW expansion AS (PARTITION BY parent ORDER BY seq, place)
           ),
           -- Whatever gives a task a result (12, 13, 14) or takes it away (the rest).
           mark AS (
               SELECT seq, type::integer AS type, body ->> 'task_id' AS task_id, body, blob FROM journal WHERE type <> 20
               UNION ALL
               SELECT t.seq, CASE x.value ->> 'type' WHEN 'task_complete' THEN 12 WHEN 'task_error' THEN 13 ELSE 14 END,
                      x.value ->> 'task_id', x.value, NULL
               FROM turn AS t, jsonb_array_elements(_list(t.body -> 'results')) AS x WHERE t.type = 26
               UNION ALL
               SELECT t.seq, 3, x.value, NULL, NULL
               FROM turn AS t, jsonb_array_elements_text(_list(t.body -> 'reset')) AS x WHERE t.type = 3
               UNION ALL
               SELECT t.seq, 3, x.value, NULL, NULL
               FROM turn AS t, jsonb_array_elements_text(_list(t.body -> 'cut_off')) AS x WHERE t.type = 3
               UNION ALL
               SELECT t.seq, 24, x.value, NULL, NULL
               FROM turn AS t, jsonb_array_elements_text(_list(t.body -> 'removed')) AS x WHERE t.type = 24
               UNION ALL
               SELECT seq, 24, body ->> 'parent', NULL, NULL FROM turn
               WHERE type = 24 AND body ->> 'origin' = 'for_each'
               UNION ALL
               SELECT f.regrown, 3, x.value, NULL, NULL
               FROM fan AS f, jsonb_array_elements_text(f.children) AS x WHERE f.regrown IS NOT NULL
           ),
           latest AS (
               SELECT DISTINCT ON (task_id) task_id, type, body, blob FROM mark WHERE task_id IS NOT NULL
               ORDER BY task_id, seq DESC
           ),
           ended AS MATERIALIZED (
               SELECT l.task_id, l.type, l.body, (l.body ->> 'layer')::integer AS layer,
                      coalesce(l.body ->> 'place', '') COLLATE "C" AS place,
                      CASE WHEN l.type = 12 THEN coalesce(b.body::jsonb, l.body -> 'output', 'null') END AS output
               FROM latest AS l LEFT JOIN blob AS b ON b.run = of_run AND b.digest = l.blob WHERE l.type IN (12, 13, 14)
           ),
           family AS (
               SELECT f.parent, jsonb_agg(coalesce(e.output, 'null') ORDER BY x.item) AS outputs
               FROM fan AS f CROSS JOIN jsonb_array_elements_text(f.children) WITH ORDINALITY AS x (task_id, item)
               LEFT JOIN ended AS e ON e.task_id = x.task_id WHERE f.newest GROUP BY f.parent
           ),
           task AS (
               SELECT e.layer, e.place, e.task_id, jsonb_build_object(
                          'task_id', e.task_id,
                          'status', CASE e.type WHEN 12 THEN 'complete' WHEN 14 THEN 'skipped'
                                                ELSE coalesce(e.body ->> 'status', 'failed') END,
                          'output', CASE WHEN e.type = 12 AND e.body -> 'gathered' = 'true'
                                         THEN coalesce(f.outputs, '[]') ELSE e.output END,
                          'error', CASE e.type WHEN 13
                              THEN '{"type":"","text":"","traceback":""}'::jsonb || (e.body -> 'error') END,
                          'execution_time_ms', coalesce(e.body -> 'execution_time_ms', '0.0'),
                          'layer', e.layer) AS entry
               FROM ended AS e LEFT JOIN family AS f ON f.parent = e.task_id
           ),
           -- The context, as far as one task set it; of two that set a key the later in the plan wins.
           setting AS (
               SELECT DISTINCT ON (x.key) x.key, x.value FROM ended AS e, jsonb_each(_map(e.body -> 'context')) AS x
               WHERE e.type = 12 ORDER BY x.key, e.layer DESC, e.place DESC, e.task_id COLLATE "C" DESC
           ),
           decision AS (
               SELECT DISTINCT ON (body ->> 'gate_id') type, body FROM journal WHERE type IN (19, 20)
               ORDER BY body ->> 'gate_id', seq DESC
           )
           SELECT jsonb_build_object(
               'workflow_id', run_id,
               'current_layer', cut_layer,
               'messages', (SELECT coalesce(jsonb_agg(x.value ORDER BY e.layer, e.place, e.task_id COLLATE "C", x.place), '[]')
                            FROM ended AS e, jsonb_array_elements(_list(e.body -> 'messages')) WITH ORDINALITY
                                AS x (value, place) WHERE e.type = 12),
               'tasks', (SELECT coalesce(jsonb_agg(entry ORDER BY layer, place, task_id COLLATE "C"), '[]') FROM task),
               'decisions', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'gate_id', body -> 'gate_id', 'kind', body -> 'kind', 'task_id', body -> 'task_id',
                       'answer', body -> 'answer', 'author', body -> 'author',
                       'reason', coalesce(body -> 'reason', '""'), 'layer', body -> 'layer')
                       || CASE WHEN body -> 'choice' IS NULL THEN '{}'
                               ELSE jsonb_build_object('choice', body -> 'choice') END
                       ORDER BY (body ->> 'layer')::integer, coalesce(body ->> 'place', '') COLLATE "C",
                                (body ->> 'gate_id') COLLATE "C"), '[]') FROM decision WHERE type = 20),
               'context', (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM setting))
       ) END;
END;

-- Every kept checkpoint with its full state. machine/facts/fold.py folds the same in Python; a contract test holds the two equal.
CREATE VIEW workflow_checkpoint AS
SELECT c.id, r.id AS workflow_id, _utc(c.at) AS timestamp, c.layer,
       _state(c.run, c.sequence, c.layer, r.id, r.kind) AS state, s.repository, s.worktree
FROM checkpoint AS c JOIN run AS r ON r.no = c.run JOIN scope AS s ON s.no = r.scope;

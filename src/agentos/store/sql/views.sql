-- Views for SQL typed by hand. Their names and columns are stable: runs, tasks, events, workflow_checkpoint.
-- Type codes: 3 resume_planned, 9 task_start, 11 task_retry, 12 task_complete, 13 task_error, 14 task_skipped,
-- 19 decision_required, 20 decision_made, 24 plan_changed, 25 rolled_back, 26 run_forked, 27 state_saved.
-- Values stay JSON text (`->`, not `->>`) wherever a number could lose digits on the way.

-- Inside: events that change what others mean, found through the index event_turn (which wants this very condition).
CREATE VIEW _turn AS
SELECT run, seq, type, body FROM event WHERE type = 3 OR type BETWEEN 24 AND 26;

-- Inside: what each rollback leaves behind: the events between `after` and `before`.
CREATE VIEW _abandoned AS
SELECT run, body ->> 'to_seq' AS after, seq AS before FROM _turn WHERE type = 25;

-- Runs as listed. Judged by the wall clock alone: a run whose driver was killed is `running` until its lease ends.
CREATE VIEW runs AS
SELECT id AS workflow_id, name, kind,
       CASE WHEN status IN ('pending', 'running')
                 AND (holder IS NULL OR lease_until < unixepoch_us.now)
            THEN 'interrupted' WHEN status = 'queued' THEN 'pending' ELSE status END AS status,
       layer, layers, epoch, sequence,
       strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000000, 'unixepoch') || printf('.%06dZ', created_at % 1000000)
           AS created_at,
       strftime('%Y-%m-%dT%H:%M:%S', updated_at / 1000000, 'unixepoch') || printf('.%06dZ', updated_at % 1000000)
           AS updated_at,
       source, root, host, fingerprint, parent_id, labels, plan_revision, holder, no AS number,
       queue, priority,
       strftime('%Y-%m-%dT%H:%M:%S', ready_at / 1000000, 'unixepoch') || printf('.%06dZ', ready_at % 1000000) AS ready_at
FROM run, (SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000 AS now) AS unixepoch_us;

-- The journal with type names, and large outputs put back in place.
CREATE VIEW events AS
SELECT r.id AS workflow_id, e.seq,
       strftime('%Y-%m-%dT%H:%M:%S', e.at / 1000000, 'unixepoch') || printf('.%06dZ', e.at % 1000000) AS at,
       coalesce(t.name, e.type) AS type, e.version,
       CASE WHEN e.blob IS NULL THEN e.body
            ELSE json_set(e.body, CASE e.type WHEN 24 THEN '$.items' ELSE '$.output' END,
                          json((SELECT b.body FROM blob AS b WHERE b.digest = e.blob))) END AS body
FROM run AS r JOIN event AS e ON e.no > r.no << 40 AND e.no < (r.no + 1) << 40 LEFT JOIN event_type AS t ON t.code = e.type;

-- Inside: of each run what happened last to each of its tasks, as lists in one JSON text: task, sequence, type, attempts,
-- body where that is not the event's own. Folded run by run: whoever asks for some runs reads their rows alone.
CREATE VIEW _folded AS
SELECT r.no AS run, r.id, r.status, (
    WITH live AS (
        SELECT e.seq, e.type, e.body FROM event AS e
        WHERE e.no > r.no << 40 AND e.no < (r.no + 1) << 40 AND e.type IN (3, 9, 11, 12, 13, 14, 19, 20, 24, 26)
          AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = r.no AND b.before > e.seq AND b.after < e.seq)
    ),
    mark AS (
        SELECT seq, type, body ->> 'task_id' AS task_id, NULL AS body FROM live WHERE type IN (9, 11, 12, 13, 14, 19, 20)
        UNION ALL
        SELECT l.seq, CASE x.value ->> 'type' WHEN 'task_complete' THEN 12 WHEN 'task_error' THEN 13 ELSE 14 END,
               x.value ->> 'task_id', x.value || ''
        FROM live AS l, json_each(l.body, '$.results') AS x WHERE l.type = 26
        UNION ALL
        SELECT l.seq, 3, x.value, '{}' FROM live AS l, json_each(l.body, '$.reset') AS x WHERE l.type = 3
        UNION ALL
        SELECT l.seq, 3, x.value, '{}' FROM live AS l, json_each(l.body, '$.cut_off') AS x WHERE l.type = 3
        UNION ALL
        SELECT l.seq, 24, x.value, '{}' FROM live AS l, json_each(l.body, '$.removed') AS x WHERE l.type = 24
        UNION ALL
        SELECT l.seq, 24, k.value, '{}'
        FROM live AS l, json_each(l.body, '$.regrown') AS x, live AS o, json_each(o.body, '$.children') AS k
        WHERE l.type = 3 AND o.type = 24 AND o.seq < l.seq AND o.body ->> 'parent' = x.value
        UNION ALL
        SELECT seq, 9, body ->> 'parent', '{}' FROM live WHERE type = 24 AND body ->> 'origin' = 'for_each'
    ),
    latest AS (
        SELECT task_id, max(seq) AS seq, type, body, sum(type = 9 AND body IS NULL) AS attempts
        FROM mark WHERE task_id IS NOT NULL GROUP BY task_id
    )
    SELECT json_group_array(json_array(task_id, seq, type, attempts, body)) FROM latest WHERE type <> 24
) AS marks FROM run AS r;

-- Inside: the same as rows, with the events.
CREATE VIEW _mark AS
SELECT f.run, f.id, f.status AS run_status, m.value ->> 0 AS task_id, m.value ->> 2 AS type, m.value ->> 3 AS attempts,
       coalesce(m.value ->> 4, e.body) AS body, CASE WHEN m.value ->> 4 IS NULL THEN e.blob END AS blob
FROM _folded AS f, json_each(f.marks) AS m LEFT JOIN event AS e ON e.no = (f.run << 40) + (m.value ->> 1);

-- Each task that anything has happened to, as it stands at the head of its run. The output of a fan-out (for_each) is
-- NULL here: it is the list of its items' outputs. In three parts, so that whoever asks for a status finds the few runs
-- that have such tasks: what is complete; what runs that have ended left, in the statuses that task_left says they may
-- have; and what is not complete of runs under way.
CREATE VIEW tasks AS
SELECT m.id AS workflow_id, m.task_id, m.body ->> 'layer' AS layer, 'complete' AS status, m.attempts,
       CASE WHEN m.body -> 'gathered' = 'true' THEN NULL
            ELSE coalesce((SELECT b.body FROM blob AS b WHERE b.digest = m.blob), m.body -> 'output', 'null') END
           AS output,
       NULL AS error, coalesce(m.body ->> 'execution_time_ms', 0.0) AS execution_time_ms, NULL AS because
FROM _mark AS m WHERE m.type = 12
UNION ALL
SELECT m.id, m.task_id, m.body ->> 'layer', k.status, m.attempts, NULL,
       CASE WHEN m.type IN (11, 13) THEN m.body -> 'error' END,
       CASE m.type WHEN 13 THEN coalesce(m.body ->> 'execution_time_ms', 0.0) END,
       CASE m.type WHEN 14 THEN coalesce(m.body ->> 'because', '') END
FROM task_left AS k JOIN _mark AS m ON m.run = k.run
WHERE m.run_status IN ('complete', 'failed', 'aborted') AND m.type <> 12
  AND k.status = CASE m.type WHEN 9 THEN 'running' WHEN 11 THEN 'retrying' WHEN 14 THEN 'skipped' WHEN 19 THEN 'waiting'
                               WHEN 13 THEN coalesce(m.body ->> 'status', 'failed') ELSE 'pending' END
UNION ALL
SELECT m.id, m.task_id, m.body ->> 'layer',
       CASE m.type WHEN 9 THEN 'running' WHEN 11 THEN 'retrying' WHEN 14 THEN 'skipped' WHEN 19 THEN 'waiting'
                   WHEN 13 THEN coalesce(m.body ->> 'status', 'failed') ELSE 'pending' END,
       m.attempts, NULL,
       CASE WHEN m.type IN (11, 13) THEN m.body -> 'error' END,
       CASE m.type WHEN 13 THEN coalesce(m.body ->> 'execution_time_ms', 0.0) END,
       CASE m.type WHEN 14 THEN coalesce(m.body ->> 'because', '') END
FROM _mark AS m WHERE m.run_status IN ('pending', 'running', 'waiting', 'paused') AND m.type <> 12;

-- Every kept checkpoint with its full state, folded from the journal up to its sequence. What a rollback left behind
-- does not count. machine/facts/fold.py folds the same in Python; a contract test holds the two equal.
CREATE VIEW workflow_checkpoint AS
SELECT c.id, r.id AS workflow_id,
       strftime('%Y-%m-%dT%H:%M:%S', c.at / 1000000, 'unixepoch') || printf('.%06dZ', c.at % 1000000) AS timestamp,
       c.layer,
       CASE r.kind WHEN 'states' THEN (
           WITH saved AS MATERIALIZED (
               SELECT e.seq, e.body FROM event AS e
               WHERE e.no > c.run << 40 AND e.no <= (c.run << 40) + c.sequence AND e.type = 27
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = c.run AND b.before <= c.sequence
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           -- An element counts until a later save begins at its place or before.
           list AS (
               SELECT seq, 'messages' AS field, nullif(body -> 'messages', 'null') AS added,
                      coalesce(body ->> 'messages_from', 0) AS start FROM saved
               UNION ALL
               SELECT seq, 'tasks', nullif(body -> 'tasks', 'null'), coalesce(body ->> 'tasks_from', 0) FROM saved
               UNION ALL
               SELECT seq, 'decisions', nullif(body -> 'decisions', 'null'), coalesce(body ->> 'decisions_from', 0)
               FROM saved
           ),
           span AS (
               SELECT seq, field, added, start, min(start) OVER (
                          PARTITION BY field ORDER BY seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS stop
               FROM list
           ),
           element AS MATERIALIZED (
               SELECT s.field, s.seq, x.key AS place,
                      CASE WHEN x.type IN ('object', 'array') THEN x.value ELSE s.added -> x.key END AS value
               FROM span AS s, json_each(s.added) AS x WHERE s.stop IS NULL OR s.start + x.key < s.stop
           ),
           entry AS (
               SELECT key, max(rank), value FROM (
                   SELECT x.key, 2 * s.seq + 1 AS rank,
                          CASE WHEN x.type IN ('object', 'array') THEN x.value
                               WHEN x.type = 'text' THEN json_quote(x.value)
                               WHEN x.type IN ('true', 'false', 'null') THEN x.type
                               WHEN instr(x.key, '"') = 0 AND instr(x.key, '\') = 0
                                   THEN (s.body -> 'context_set') -> x.fullkey
                               WHEN x.type = 'real' THEN printf('%!.17g', x.value) ELSE json_quote(x.value) END AS value
                   FROM saved AS s, json_each(s.body -> 'context_set') AS x WHERE x.key IS NOT NULL
                   UNION ALL
                   SELECT x.value, 2 * s.seq, NULL FROM saved AS s, json_each(s.body, '$.context_removed') AS x
               ) GROUP BY key
           )
           SELECT json_object(
               'workflow_id', r.id,
               'current_layer', (SELECT body ->> 'current_layer' FROM saved ORDER BY seq DESC LIMIT 1),
               'messages', json((SELECT '[' || coalesce(group_concat(value, ','), '') || ']' FROM (
                   SELECT value FROM element WHERE field = 'messages' ORDER BY seq, place))),
               'tasks', json((SELECT '[' || coalesce(group_concat(value, ','), '') || ']' FROM (
                   SELECT value FROM element WHERE field = 'tasks' ORDER BY seq, place))),
               'decisions', json((SELECT '[' || coalesce(group_concat(value, ','), '') || ']' FROM (
                   SELECT value FROM element WHERE field = 'decisions' ORDER BY seq, place))),
               'context', json((SELECT json_group_object(key, json(value)) FROM entry WHERE value IS NOT NULL)))
       ) ELSE (
           -- Each part is read once, never looked up from inside a loop: SQLite makes a part that depends on the
           -- checkpoint anew at every turn.
           WITH journal AS (
               SELECT e.seq, e.type, e.body, e.blob FROM event AS e
               WHERE e.no > c.run << 40 AND e.no <= (c.run << 40) + c.sequence AND e.type IN (9, 11, 12, 13, 14, 19, 20)
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = c.run AND b.before <= c.sequence
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           turn AS (
               SELECT e.seq, e.type, e.body FROM _turn AS e WHERE e.run = c.run AND +e.seq <= c.sequence
                 AND NOT EXISTS (SELECT 1 FROM _abandoned AS b WHERE b.run = c.run AND b.before <= c.sequence
                                 AND b.before > e.seq AND b.after < e.seq)
           ),
           -- Fan-outs: the items of each expansion, and where (if anywhere) the list was given up to be made anew.
           fan AS (
               SELECT parent, children, lead(seq) OVER expansion IS NULL AS newest,
                      lead(CASE WHEN children IS NULL THEN seq END) OVER expansion AS regrown
               FROM (
                   SELECT seq, 0 AS place, body ->> 'parent' AS parent, coalesce(body -> 'children', '[]') AS children
                   FROM turn WHERE type = 24 AND body ->> 'origin' = 'for_each'
                   UNION ALL
                   SELECT t.seq, x.key, x.value ->> 'parent', coalesce(x.value -> 'children', '[]')
                   FROM turn AS t, json_each(t.body, '$.changes') AS x
                   WHERE t.type = 26 AND x.value ->> 'origin' = 'for_each'
                   UNION ALL
                   SELECT t.seq, 0, x.value, NULL FROM turn AS t, json_each(t.body, '$.regrown') AS x WHERE t.type = 3
               ) WINDOW expansion AS (PARTITION BY parent ORDER BY seq, place)
           ),
           -- Whatever gives a task a result (12, 13, 14) or takes it away (the rest).
           mark AS (
               SELECT seq, type, body ->> 'task_id' AS task_id, body, blob FROM journal WHERE type <> 20
               UNION ALL
               SELECT t.seq, CASE x.value ->> 'type' WHEN 'task_complete' THEN 12 WHEN 'task_error' THEN 13 ELSE 14 END,
                      x.value ->> 'task_id', x.value, NULL
               FROM turn AS t, json_each(t.body, '$.results') AS x WHERE t.type = 26
               UNION ALL
               SELECT t.seq, 3, x.value, NULL, NULL FROM turn AS t, json_each(t.body, '$.reset') AS x WHERE t.type = 3
               UNION ALL
               SELECT t.seq, 3, x.value, NULL, NULL FROM turn AS t, json_each(t.body, '$.cut_off') AS x WHERE t.type = 3
               UNION ALL
               SELECT t.seq, 24, x.value, NULL, NULL FROM turn AS t, json_each(t.body, '$.removed') AS x
               WHERE t.type = 24
               UNION ALL
               SELECT seq, 24, body ->> 'parent', NULL, NULL FROM turn
               WHERE type = 24 AND body ->> 'origin' = 'for_each'
               UNION ALL
               SELECT f.regrown, 3, x.value, NULL, NULL FROM fan AS f, json_each(f.children) AS x
               WHERE f.regrown IS NOT NULL
           ),
           latest AS (
               SELECT task_id, max(seq) AS seq, type, body, blob FROM mark WHERE task_id IS NOT NULL GROUP BY task_id
           ),
           ended AS (
               SELECT task_id, type, body,
                      CASE WHEN type = 12 THEN coalesce((SELECT b.body FROM blob AS b WHERE b.digest = latest.blob),
                                                        body -> 'output', 'null') END AS output
               FROM latest WHERE type IN (12, 13, 14)
           ),
           -- Each task beside the place it has in its fan-out, if it is an item of one.
           paired AS (
               SELECT task_id, max(type) AS type, max(body) AS body, max(output) AS output, max(parent) AS parent,
                      max(item) AS item
               FROM (
                   SELECT task_id, type, body, output, NULL AS parent, NULL AS item FROM ended
                   UNION ALL
                   SELECT x.value, NULL, NULL, NULL, f.parent, x.key FROM fan AS f, json_each(f.children) AS x
                   WHERE f.newest
               ) GROUP BY task_id
           ),
           gathered AS (
               SELECT task_id, type, body, body ->> 'layer' AS layer, body ->> 'place' AS place,
                      CASE WHEN type = 12 AND coalesce(body -> 'gathered', '') = 'true'
                           THEN '[' || coalesce(group_concat(
                                   CASE WHEN item IS NOT NULL THEN coalesce(output, 'null') END, ',') OVER family, '')
                               || ']'
                           ELSE coalesce(output, 'null') END AS output
               FROM paired
               WINDOW family AS (PARTITION BY coalesce(parent, task_id) ORDER BY item
                                 ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
           ),
           task AS (
               SELECT CASE WHEN type = 12 AND coalesce(body -> 'messages', 'null') NOT IN ('null', '[]')
                           THEN substr(body -> 'messages', 2, length(body -> 'messages') - 2) END AS messages,
                      json_object(
                          'task_id', task_id,
                          'status', CASE type WHEN 12 THEN 'complete' WHEN 14 THEN 'skipped'
                                              ELSE coalesce(body ->> 'status', 'failed') END,
                          'output', json(output),
                          'error', json(CASE type WHEN 13
                              THEN json_patch('{"type":"","text":"","traceback":""}', body -> 'error') END),
                          'execution_time_ms', json(coalesce(body -> 'execution_time_ms', '0.0')),
                          'layer', layer) AS entry
               FROM gathered WHERE type IS NOT NULL ORDER BY layer, place, task_id
           ),
           -- The context, as far as one task set it; of two that set a key the later in the plan wins.
           setting AS (
               SELECT x.key, dense_rank() OVER (ORDER BY t.body ->> 'layer', t.body ->> 'place', t.task_id) AS rank,
                      CASE WHEN x.type IN ('object', 'array') THEN x.value
                           WHEN x.type = 'text' THEN json_quote(x.value)
                           WHEN x.type IN ('true', 'false', 'null') THEN x.type
                           WHEN instr(x.key, '"') = 0 AND instr(x.key, '\') = 0 THEN (t.body -> 'context') -> x.fullkey
                           WHEN x.type = 'real' THEN printf('%!.17g', x.value) ELSE json_quote(x.value) END AS value
               FROM ended AS t, json_each(t.body -> 'context') AS x WHERE t.type = 12 AND x.key IS NOT NULL
           ),
           decision AS (
               SELECT body ->> 'gate_id' AS gate_id, max(seq) AS seq, type, body FROM journal
               WHERE type IN (19, 20) GROUP BY body ->> 'gate_id'
           )
           SELECT json_object(
               'workflow_id', r.id,
               'current_layer', c.layer,
               'messages', json('[' || coalesce(group_concat(messages, ','), '') || ']'),
               'tasks', json('[' || coalesce(group_concat(entry, ','), '') || ']'),
               'decisions', json((SELECT '[' || coalesce(group_concat(made, ','), '') || ']' FROM (
                   SELECT json_patch(json_object(
                       'gate_id', gate_id, 'kind', body ->> 'kind', 'task_id', body ->> 'task_id',
                       'answer', body ->> 'answer', 'author', json(body -> 'author'),
                       'reason', json(coalesce(body -> 'reason', '""')), 'layer', body ->> 'layer'),
                       coalesce('{"choice":' || (body -> 'choice') || '}', '{}')) AS made
                   FROM decision WHERE type = 20
                   ORDER BY body ->> 'layer', coalesce(body ->> 'place', ''), gate_id))),
               'context', json((SELECT json_group_object(key, json(value)) FROM (
                   SELECT key, max(rank), value FROM setting GROUP BY key))))
           FROM task
       ) END AS state
FROM checkpoint AS c JOIN run AS r ON r.no = c.run;

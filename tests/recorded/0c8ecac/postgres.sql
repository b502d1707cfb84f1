CREATE SCHEMA agentos_recorded;
CREATE FUNCTION agentos_recorded._list(value jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE jsonb_typeof(value) WHEN 'array' THEN value ELSE '[]' END $$;
CREATE FUNCTION agentos_recorded._map(value jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT CASE jsonb_typeof(value) WHEN 'object' THEN value ELSE '{}' END $$;
CREATE TABLE agentos_recorded.event (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    type smallint NOT NULL,
    version smallint NOT NULL,
    body text NOT NULL,
    plain text,
    blob bytea,
    digest bytea NOT NULL
);
CREATE VIEW agentos_recorded._turn AS
 SELECT run,
    seq,
    type,
    (COALESCE(plain, body))::jsonb AS body
   FROM agentos_recorded.event
  WHERE ((type = 3) OR ((type >= 24) AND (type <= 26)));
CREATE VIEW agentos_recorded._abandoned AS
 SELECT run,
    ((body ->> 'to_seq'::text))::bigint AS after,
    seq AS before
   FROM agentos_recorded._turn
  WHERE (type = 25);
CREATE TABLE agentos_recorded.blob (
    run bigint NOT NULL,
    digest bytea NOT NULL,
    size bigint NOT NULL,
    body text NOT NULL
);
CREATE FUNCTION agentos_recorded._state(of_run bigint, upto bigint, cut_layer integer, run_id text, run_kind text) RETURNS jsonb
    LANGUAGE sql STABLE
    SET jit TO 'off'
    BEGIN ATOMIC
 SELECT
         CASE run_kind
             WHEN 'states'::text THEN ( WITH saved AS MATERIALIZED (
                      SELECT e.seq,
                         (COALESCE(e.plain, e.body))::jsonb AS body
                        FROM agentos_recorded.event e
                       WHERE ((e.run = _state.of_run) AND (e.seq <= _state.upto) AND (e.type = 27) AND (NOT (EXISTS ( SELECT 1
                                FROM agentos_recorded._abandoned b
                               WHERE ((b.run = _state.of_run) AND (b.before <= _state.upto) AND (b.before > e.seq) AND (b.after < e.seq))))))
                     ), list AS (
                      SELECT s.seq,
                         f.field,
                         agentos_recorded._list((s.body -> f.field)) AS added,
                         COALESCE(((s.body ->> (f.field || '_from'::text)))::integer, 0) AS start
                        FROM saved s,
                         unnest(ARRAY['messages'::text, 'tasks'::text, 'decisions'::text]) f(field)
                     ), span AS (
                      SELECT list.seq,
                         list.field,
                         list.added,
                         list.start,
                         min(list.start) OVER (PARTITION BY list.field ORDER BY list.seq ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS stop
                        FROM list
                     ), lists AS (
                      SELECT s.field,
                         jsonb_agg(x.value ORDER BY s.seq, x.place) AS elements
                        FROM span s,
                         LATERAL jsonb_array_elements(s.added) WITH ORDINALITY x(value, place)
                       WHERE ((s.stop IS NULL) OR (((s.start + x.place) - 1) < s.stop))
                       GROUP BY s.field
                     ), entry AS (
                      SELECT DISTINCT ON (said.key) said.key,
                         said.value
                        FROM ( SELECT x.key,
                                 ((2 * s.seq) + 1) AS rank,
                                 x.value
                                FROM saved s,
                                 LATERAL jsonb_each(agentos_recorded._map((s.body -> 'context_set'::text))) x(key, value)
                             UNION ALL
                              SELECT x.value,
                                 (2 * s.seq),
                                 NULL::jsonb
                                FROM saved s,
                                 LATERAL jsonb_array_elements_text(agentos_recorded._list((s.body -> 'context_removed'::text))) x(value)) said
                       ORDER BY said.key, said.rank DESC
                     )
              SELECT jsonb_build_object('workflow_id', run_id, 'current_layer', ( SELECT (saved.body -> 'current_layer'::text)
                        FROM saved
                       ORDER BY saved.seq DESC
                      LIMIT 1), 'messages', COALESCE(( SELECT lists.elements
                        FROM lists
                       WHERE (lists.field = 'messages'::text)), '[]'::jsonb), 'tasks', COALESCE(( SELECT lists.elements
                        FROM lists
                       WHERE (lists.field = 'tasks'::text)), '[]'::jsonb), 'decisions', COALESCE(( SELECT lists.elements
                        FROM lists
                       WHERE (lists.field = 'decisions'::text)), '[]'::jsonb), 'context', ( SELECT COALESCE(jsonb_object_agg(entry.key, entry.value) FILTER (WHERE (entry.value IS NOT NULL)), '{}'::jsonb) AS "coalesce"
                        FROM entry)) AS jsonb_build_object)
             ELSE ( WITH journal AS MATERIALIZED (
                      SELECT e.seq,
                         e.type,
                         (COALESCE(e.plain, e.body))::jsonb AS body,
                         e.blob
                        FROM agentos_recorded.event e
                       WHERE ((e.run = _state.of_run) AND (e.seq <= _state.upto) AND (e.type = ANY (ARRAY[9, 11, 12, 13, 14, 19, 20])) AND (NOT (EXISTS ( SELECT 1
                                FROM agentos_recorded._abandoned b
                               WHERE ((b.run = _state.of_run) AND (b.before <= _state.upto) AND (b.before > e.seq) AND (b.after < e.seq))))))
                     ), turn AS MATERIALIZED (
                      SELECT e.seq,
                         e.type,
                         e.body
                        FROM agentos_recorded._turn e
                       WHERE ((e.run = _state.of_run) AND (e.seq <= _state.upto) AND (NOT (EXISTS ( SELECT 1
                                FROM agentos_recorded._abandoned b
                               WHERE ((b.run = _state.of_run) AND (b.before <= _state.upto) AND (b.before > e.seq) AND (b.after < e.seq))))))
                     ), fan AS MATERIALIZED (
                      SELECT expansions.parent,
                         expansions.children,
                         (lead(expansions.seq) OVER expansion IS NULL) AS newest,
                         lead(
                             CASE
                                 WHEN (expansions.children IS NULL) THEN expansions.seq
                                 ELSE NULL::bigint
                             END) OVER expansion AS regrown
                        FROM ( SELECT turn.seq,
                                 (0)::bigint AS place,
                                 (turn.body ->> 'parent'::text) AS parent,
                                 agentos_recorded._list((turn.body -> 'children'::text)) AS children
                                FROM turn
                               WHERE ((turn.type = 24) AND ((turn.body ->> 'origin'::text) = 'for_each'::text))
                             UNION ALL
                              SELECT t.seq,
                                 x.place,
                                 (x.value ->> 'parent'::text),
                                 agentos_recorded._list((x.value -> 'children'::text)) AS _list
                                FROM turn t,
                                 LATERAL jsonb_array_elements(agentos_recorded._list((t.body -> 'changes'::text))) WITH ORDINALITY x(value, place)
                               WHERE ((t.type = 26) AND ((x.value ->> 'origin'::text) = 'for_each'::text))
                             UNION ALL
                              SELECT t.seq,
                                 0,
                                 x.value,
                                 NULL::jsonb
                                FROM turn t,
                                 LATERAL jsonb_array_elements_text(agentos_recorded._list((t.body -> 'regrown'::text))) x(value)
                               WHERE (t.type = 3)) expansions
                       WINDOW expansion AS (PARTITION BY expansions.parent ORDER BY expansions.seq, expansions.place)
                     ), mark AS (
                      SELECT journal.seq,
                         (journal.type)::integer AS type,
                         (journal.body ->> 'task_id'::text) AS task_id,
                         journal.body,
                         journal.blob
                        FROM journal
                       WHERE (journal.type <> 20)
                     UNION ALL
                      SELECT t.seq,
                             CASE (x.value ->> 'type'::text)
                                 WHEN 'task_complete'::text THEN 12
                                 WHEN 'task_error'::text THEN 13
                                 ELSE 14
                             END AS "case",
                         (x.value ->> 'task_id'::text),
                         x.value,
                         NULL::bytea
                        FROM turn t,
                         LATERAL jsonb_array_elements(agentos_recorded._list((t.body -> 'results'::text))) x(value)
                       WHERE (t.type = 26)
                     UNION ALL
                      SELECT t.seq,
                         3,
                         x.value,
                         NULL::jsonb,
                         NULL::bytea
                        FROM turn t,
                         LATERAL jsonb_array_elements_text(agentos_recorded._list((t.body -> 'reset'::text))) x(value)
                       WHERE (t.type = 3)
                     UNION ALL
                      SELECT t.seq,
                         3,
                         x.value,
                         NULL::jsonb,
                         NULL::bytea
                        FROM turn t,
                         LATERAL jsonb_array_elements_text(agentos_recorded._list((t.body -> 'cut_off'::text))) x(value)
                       WHERE (t.type = 3)
                     UNION ALL
                      SELECT t.seq,
                         24,
                         x.value,
                         NULL::jsonb,
                         NULL::bytea
                        FROM turn t,
                         LATERAL jsonb_array_elements_text(agentos_recorded._list((t.body -> 'removed'::text))) x(value)
                       WHERE (t.type = 24)
                     UNION ALL
                      SELECT turn.seq,
                         24,
                         (turn.body ->> 'parent'::text),
                         NULL::jsonb,
                         NULL::bytea
                        FROM turn
                       WHERE ((turn.type = 24) AND ((turn.body ->> 'origin'::text) = 'for_each'::text))
                     UNION ALL
                      SELECT f.regrown,
                         3,
                         x.value,
                         NULL::jsonb,
                         NULL::bytea
                        FROM fan f,
                         LATERAL jsonb_array_elements_text(f.children) x(value)
                       WHERE (f.regrown IS NOT NULL)
                     ), latest AS (
                      SELECT DISTINCT ON (mark.task_id) mark.task_id,
                         mark.type,
                         mark.body,
                         mark.blob
                        FROM mark
                       WHERE (mark.task_id IS NOT NULL)
                       ORDER BY mark.task_id, mark.seq DESC
                     ), ended AS MATERIALIZED (
                      SELECT l.task_id,
                         l.type,
                         l.body,
                         ((l.body ->> 'layer'::text))::integer AS layer,
                         (COALESCE((l.body ->> 'place'::text), ''::text) COLLATE "C") AS place,
                             CASE
                                 WHEN (l.type = 12) THEN COALESCE((b.body)::jsonb, (l.body -> 'output'::text), 'null'::jsonb)
                                 ELSE NULL::jsonb
                             END AS output
                        FROM (latest l
                          LEFT JOIN agentos_recorded.blob b ON (((b.run = _state.of_run) AND (b.digest = l.blob))))
                       WHERE (l.type = ANY (ARRAY[12, 13, 14]))
                     ), family AS (
                      SELECT f.parent,
                         jsonb_agg(COALESCE(e.output, 'null'::jsonb) ORDER BY x.item) AS outputs
                        FROM ((fan f
                          CROSS JOIN LATERAL jsonb_array_elements_text(f.children) WITH ORDINALITY x(task_id, item))
                          LEFT JOIN ended e ON ((e.task_id = x.task_id)))
                       WHERE f.newest
                       GROUP BY f.parent
                     ), task AS (
                      SELECT e.layer,
                         e.place,
                         e.task_id,
                         jsonb_build_object('task_id', e.task_id, 'status',
                             CASE e.type
                                 WHEN 12 THEN 'complete'::text
                                 WHEN 14 THEN 'skipped'::text
                                 ELSE COALESCE((e.body ->> 'status'::text), 'failed'::text)
                             END, 'output',
                             CASE
                                 WHEN ((e.type = 12) AND ((e.body -> 'gathered'::text) = 'true'::jsonb)) THEN COALESCE(f.outputs, '[]'::jsonb)
                                 ELSE e.output
                             END, 'error',
                             CASE e.type
                                 WHEN 13 THEN ('{"text": "", "type": "", "traceback": ""}'::jsonb || (e.body -> 'error'::text))
                                 ELSE NULL::jsonb
                             END, 'execution_time_ms', COALESCE((e.body -> 'execution_time_ms'::text), '0.0'::jsonb), 'layer', e.layer) AS entry
                        FROM (ended e
                          LEFT JOIN family f ON ((f.parent = e.task_id)))
                     ), setting AS (
                      SELECT DISTINCT ON (x.key) x.key,
                         x.value
                        FROM ended e,
                         LATERAL jsonb_each(agentos_recorded._map((e.body -> 'context'::text))) x(key, value)
                       WHERE (e.type = 12)
                       ORDER BY x.key, e.layer DESC, e.place DESC, (e.task_id COLLATE "C") DESC
                     ), decision AS (
                      SELECT DISTINCT ON ((journal.body ->> 'gate_id'::text)) journal.type,
                         journal.body
                        FROM journal
                       WHERE (journal.type = ANY (ARRAY[19, 20]))
                       ORDER BY (journal.body ->> 'gate_id'::text), journal.seq DESC
                     )
              SELECT jsonb_build_object('workflow_id', run_id, 'current_layer', cut_layer, 'messages', ( SELECT COALESCE(jsonb_agg(x.value ORDER BY e.layer, e.place, (e.task_id COLLATE "C"), x.place), '[]'::jsonb) AS "coalesce"
                        FROM ended e,
                         LATERAL jsonb_array_elements(agentos_recorded._list((e.body -> 'messages'::text))) WITH ORDINALITY x(value, place)
                       WHERE (e.type = 12)), 'tasks', ( SELECT COALESCE(jsonb_agg(task.entry ORDER BY task.layer, task.place, (task.task_id COLLATE "C")), '[]'::jsonb) AS "coalesce"
                        FROM task), 'decisions', ( SELECT COALESCE(jsonb_agg(jsonb_build_object('gate_id', (decision.body -> 'gate_id'::text), 'kind', (decision.body -> 'kind'::text), 'task_id', (decision.body -> 'task_id'::text), 'answer', (decision.body -> 'answer'::text), 'author', (decision.body -> 'author'::text), 'reason', COALESCE((decision.body -> 'reason'::text), '""'::jsonb), 'layer', (decision.body -> 'layer'::text)) ORDER BY ((decision.body ->> 'layer'::text))::integer, (COALESCE((decision.body ->> 'place'::text), ''::text) COLLATE "C"), ((decision.body ->> 'gate_id'::text) COLLATE "C")), '[]'::jsonb) AS "coalesce"
                        FROM decision
                       WHERE (decision.type = 20)), 'context', ( SELECT COALESCE(jsonb_object_agg(setting.key, setting.value), '{}'::jsonb) AS "coalesce"
                        FROM setting)) AS jsonb_build_object)
         END AS jsonb_build_object;
END;
CREATE FUNCTION agentos_recorded._utc(at bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT to_char(timestamp 'epoch' + at * interval '1 microsecond', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;
CREATE TABLE agentos_recorded.checkpoint (
    id text NOT NULL COLLATE pg_catalog."C",
    run bigint NOT NULL,
    sequence bigint NOT NULL,
    layer integer NOT NULL,
    at bigint NOT NULL,
    digest bytea NOT NULL,
    snapshot text NOT NULL,
    name text DEFAULT ''::text NOT NULL,
    abandoned boolean DEFAULT false NOT NULL,
    CONSTRAINT "layer >= 0" CHECK ((layer >= 0))
);
CREATE TABLE agentos_recorded.event_type (
    code smallint NOT NULL,
    name text NOT NULL
);
CREATE TABLE agentos_recorded.run (
    no bigint NOT NULL,
    scope bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    kind text NOT NULL,
    status text NOT NULL,
    layer integer NOT NULL,
    layers integer NOT NULL,
    epoch integer NOT NULL,
    sequence bigint NOT NULL,
    digest bytea NOT NULL,
    plan_revision integer NOT NULL,
    token bigint NOT NULL,
    holder text,
    lease_until timestamp with time zone NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    source text NOT NULL,
    root text NOT NULL,
    host text NOT NULL,
    fingerprint text NOT NULL,
    parent_id text,
    labels text NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE agentos_recorded.scope (
    no bigint NOT NULL,
    repository text NOT NULL COLLATE pg_catalog."C",
    worktree text NOT NULL COLLATE pg_catalog."C"
);
CREATE VIEW agentos_recorded.events AS
 SELECT r.id AS workflow_id,
    e.seq,
    agentos_recorded._utc(e.at) AS at,
    COALESCE(t.name, (e.type)::text) AS type,
    e.version,
        CASE
            WHEN (e.blob IS NULL) THEN (COALESCE(e.plain, e.body))::jsonb
            ELSE jsonb_set((COALESCE(e.plain, e.body))::jsonb, ARRAY[
            CASE e.type
                WHEN 24 THEN 'items'::text
                ELSE 'output'::text
            END], ( SELECT (b.body)::jsonb AS body
               FROM agentos_recorded.blob b
              WHERE ((b.run = e.run) AND (b.digest = e.blob))))
        END AS body,
    s.repository,
    s.worktree
   FROM (((agentos_recorded.run r
     JOIN agentos_recorded.scope s ON ((s.no = r.scope)))
     JOIN agentos_recorded.event e ON ((e.run = r.no)))
     LEFT JOIN agentos_recorded.event_type t ON ((t.code = e.type)));
CREATE UNLOGGED TABLE agentos_recorded.follower (
    run bigint NOT NULL,
    until timestamp with time zone NOT NULL
);
CREATE TABLE agentos_recorded.inbox (
    no bigint NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    run bigint NOT NULL,
    posted_at bigint NOT NULL,
    author text NOT NULL,
    attempt_id text NOT NULL,
    body text NOT NULL,
    consumed_at bigint
);
ALTER TABLE agentos_recorded.inbox ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME agentos_recorded.inbox_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE agentos_recorded.meta (
    key text NOT NULL,
    value text NOT NULL
);
CREATE TABLE agentos_recorded.plan (
    run bigint NOT NULL,
    revision integer NOT NULL,
    body bytea NOT NULL,
    digest bytea NOT NULL
);
ALTER TABLE agentos_recorded.run ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME agentos_recorded.run_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW agentos_recorded.runs AS
 SELECT r.id AS workflow_id,
    r.name,
    r.kind,
        CASE
            WHEN ((r.status = ANY (ARRAY['pending'::text, 'running'::text])) AND ((r.holder IS NULL) OR (r.lease_until < statement_timestamp()))) THEN 'interrupted'::text
            ELSE r.status
        END AS status,
    r.layer,
    r.layers,
    r.epoch,
    r.sequence,
    agentos_recorded._utc(r.created_at) AS created_at,
    agentos_recorded._utc(r.updated_at) AS updated_at,
    r.source,
    r.root,
    r.host,
    r.fingerprint,
    r.parent_id,
    (r.labels)::jsonb AS labels,
    r.plan_revision,
    (r.holder)::jsonb AS holder,
    s.repository,
    s.worktree,
    r.no AS number
   FROM (agentos_recorded.run r
     JOIN agentos_recorded.scope s ON ((s.no = r.scope)));
ALTER TABLE agentos_recorded.scope ALTER COLUMN no ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME agentos_recorded.scope_no_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE VIEW agentos_recorded.tasks AS
 SELECT r.id AS workflow_id,
    m.task_id,
    ((m.body ->> 'layer'::text))::integer AS layer,
        CASE m.type
            WHEN 9 THEN 'running'::text
            WHEN 11 THEN 'retrying'::text
            WHEN 12 THEN 'complete'::text
            WHEN 14 THEN 'skipped'::text
            WHEN 13 THEN COALESCE((m.body ->> 'status'::text), 'failed'::text)
            WHEN 19 THEN 'waiting'::text
            ELSE 'pending'::text
        END AS status,
    m.attempts,
        CASE
            WHEN ((m.type <> 12) OR ((m.body -> 'gathered'::text) = 'true'::jsonb)) THEN NULL::jsonb
            ELSE COALESCE(( SELECT (b.body)::jsonb AS body
               FROM agentos_recorded.blob b
              WHERE ((b.run = r.no) AND (b.digest = m.blob))), (m.body -> 'output'::text), 'null'::jsonb)
        END AS output,
        CASE
            WHEN (m.type = ANY (ARRAY[11, 13])) THEN (m.body -> 'error'::text)
            ELSE NULL::jsonb
        END AS error,
        CASE
            WHEN (m.type = ANY (ARRAY[12, 13])) THEN COALESCE(((m.body ->> 'execution_time_ms'::text))::double precision, (0.0)::double precision)
            ELSE NULL::double precision
        END AS execution_time_ms,
        CASE m.type
            WHEN 14 THEN COALESCE((m.body ->> 'because'::text), ''::text)
            ELSE NULL::text
        END AS because,
    s.repository,
    s.worktree
   FROM ((agentos_recorded.run r
     JOIN agentos_recorded.scope s ON ((s.no = r.scope)))
     CROSS JOIN LATERAL ( WITH live AS (
                 SELECT e.seq,
                    e.type,
                    (COALESCE(e.plain, e.body))::jsonb AS body,
                    e.blob
                   FROM agentos_recorded.event e
                  WHERE ((e.run = r.no) AND (e.type = ANY (ARRAY[3, 9, 11, 12, 13, 14, 19, 20, 24, 26])) AND (NOT (EXISTS ( SELECT 1
                           FROM agentos_recorded._abandoned b
                          WHERE ((b.run = r.no) AND (b.before > e.seq) AND (b.after < e.seq))))))
                ), mark AS (
                 SELECT live.seq,
                    (live.type)::integer AS type,
                    (live.body ->> 'task_id'::text) AS task_id,
                    live.body,
                    live.blob
                   FROM live
                  WHERE (live.type = ANY (ARRAY[9, 11, 12, 13, 14, 19, 20]))
                UNION ALL
                 SELECT l.seq,
                        CASE (x.value ->> 'type'::text)
                            WHEN 'task_complete'::text THEN 12
                            WHEN 'task_error'::text THEN 13
                            ELSE 14
                        END AS "case",
                    (x.value ->> 'task_id'::text),
                    x.value,
                    NULL::bytea
                   FROM live l,
                    LATERAL jsonb_array_elements(agentos_recorded._list((l.body -> 'results'::text))) x(value)
                  WHERE (l.type = 26)
                UNION ALL
                 SELECT l.seq,
                    3,
                    x.value,
                    '{}'::jsonb,
                    NULL::bytea
                   FROM live l,
                    LATERAL jsonb_array_elements_text(agentos_recorded._list((l.body -> 'reset'::text))) x(value)
                  WHERE (l.type = 3)
                UNION ALL
                 SELECT l.seq,
                    3,
                    x.value,
                    '{}'::jsonb,
                    NULL::bytea
                   FROM live l,
                    LATERAL jsonb_array_elements_text(agentos_recorded._list((l.body -> 'cut_off'::text))) x(value)
                  WHERE (l.type = 3)
                UNION ALL
                 SELECT l.seq,
                    24,
                    x.value,
                    '{}'::jsonb,
                    NULL::bytea
                   FROM live l,
                    LATERAL jsonb_array_elements_text(agentos_recorded._list((l.body -> 'removed'::text))) x(value)
                  WHERE (l.type = 24)
                UNION ALL
                 SELECT l.seq,
                    24,
                    k.value,
                    '{}'::jsonb,
                    NULL::bytea
                   FROM live l,
                    LATERAL jsonb_array_elements_text(agentos_recorded._list((l.body -> 'regrown'::text))) x(value),
                    live o,
                    LATERAL jsonb_array_elements_text(agentos_recorded._list((o.body -> 'children'::text))) k(value)
                  WHERE ((l.type = 3) AND (o.type = 24) AND (o.seq < l.seq) AND ((o.body ->> 'parent'::text) = x.value))
                UNION ALL
                 SELECT live.seq,
                    9,
                    (live.body ->> 'parent'::text),
                    '{}'::jsonb,
                    NULL::bytea
                   FROM live
                  WHERE ((live.type = 24) AND ((live.body ->> 'origin'::text) = 'for_each'::text))
                )
         SELECT DISTINCT ON (mark.task_id) mark.task_id,
            mark.type,
            mark.body,
            mark.blob,
            sum(
                CASE
                    WHEN ((mark.type = 9) AND (mark.body <> '{}'::jsonb)) THEN 1
                    ELSE 0
                END) OVER (PARTITION BY mark.task_id) AS attempts
           FROM mark
          WHERE (mark.task_id IS NOT NULL)
          ORDER BY mark.task_id, mark.seq DESC) m)
  WHERE (m.type <> 24);
CREATE VIEW agentos_recorded.workflow_checkpoint AS
 SELECT c.id,
    r.id AS workflow_id,
    agentos_recorded._utc(c.at) AS "timestamp",
    c.layer,
    agentos_recorded._state(c.run, c.sequence, c.layer, r.id, r.kind) AS state,
    s.repository,
    s.worktree
   FROM ((agentos_recorded.checkpoint c
     JOIN agentos_recorded.run r ON ((r.no = c.run)))
     JOIN agentos_recorded.scope s ON ((s.no = r.scope)));
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4a57-7154-8c15-39d53a2404f3', 1, 9, 0, 1794816035415571, '\xac63f9badc1cb01f553e3a641236e392', '702b74e25fd46b5564423fdca6f0b9075db6e688', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4c87-7a55-b9ae-2085f7693a70', 2, 7, 0, 1794816035975255, '\xb3b2e8b1563f2dfbca65e2e231a36f0d', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4c9a-7d80-a687-5d2e3cd5967d', 2, 14, 1, 1794816035994608, '\x3b2c726844c379d28952b24e9991d194', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4c9a-7d23-85a2-2e6a145196b2', 2, 18, 2, 1794816035994608, '\xbb4f2579bd884e7752047cde47223c2c', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4eb2-740f-bc02-9a0f3bf3979a', 3, 8, 0, 1794816036530741, '\x03abe6bf9d97e6f3c3f37c96add5fcee', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4eb9-7f60-9534-798108b4cc95', 3, 14, 1, 1794816036537826, '\x15e39a210b5cdda9dbc603d585ad7132', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-4ec1-7e47-9aec-47a757f6888e', 3, 20, 2, 1794816036545234, '\x1f05d3779e207e2e950bf497c471eff2', '', '', false);
INSERT INTO agentos_recorded.checkpoint VALUES ('01a1e35f-5591-7491-89b6-e34bb8377f82', 5, 11, 0, 1794816038289610, '\x3f4fe5b2483717d6ceaadcb357a3114c', '587a3e0cf12a67730d3467edf82cd482226b5fc5', '', false);
INSERT INTO agentos_recorded.event VALUES (1, 1, 1794816035380673, 1, 1, '{"name":"gate","total_layers":2,"plan_fingerprint":"1:1bbde4349bd4d27cb282d3aa766706d07dc1be7e4b4fe16dfe0046039624c870"}', NULL, NULL, '\x609062c26dbe0fbbf2dbb8a5dda88f86');
INSERT INTO agentos_recorded.event VALUES (1, 2, 1794816035380673, 2, 1, '{"token":1,"holder":"process 11758 on recorder"}', NULL, NULL, '\x9e6f71621564760695315deea966d3a2');
INSERT INTO agentos_recorded.event VALUES (1, 3, 1794816035380673, 28, 1, '{"snapshot":"702b74e25fd46b5564423fdca6f0b9075db6e688","tree":"ec095da7367ef898736b1f4a9c7bea2ffcd9a97f","why":"start"}', NULL, NULL, '\x2adf7e0c7cac61ea94dcb0543ba0fbb0');
INSERT INTO agentos_recorded.event VALUES (1, 4, 1794816035380673, 8, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\x425ed76ef1b289ae4ced70997a2b301e');
INSERT INTO agentos_recorded.event VALUES (1, 5, 1794816035380673, 9, 1, '{"task_id":"build","layer":0,"attempt":1}', NULL, NULL, '\xa028757f62b6087a43abaab580ea564b');
INSERT INTO agentos_recorded.event VALUES (1, 6, 1794816035394506, 10, 1, '{"task_id":"build","layer":0,"attempt":1,"pid":11784,"pgid":11784,"started":698.7}', NULL, NULL, '\x1cad7baa37aba77082080ee9c82b8fb9');
INSERT INTO agentos_recorded.event VALUES (1, 7, 1794816035398954, 12, 1, '{"task_id":"build","layer":0,"place":"000000","attempt":1,"output":{"stdout":"built","stderr":"","exit_code":0},"execution_time_ms":8.289}', NULL, NULL, '\x685da73f499c67af679b1ee5773395ce');
INSERT INTO agentos_recorded.event VALUES (1, 8, 1794816035415571, 16, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\xd27c0238e5627bc07dc828992881523f');
INSERT INTO agentos_recorded.event VALUES (1, 9, 1794816035415571, 17, 1, '{"checkpoint_id":"01a1e35f-4a57-7154-8c15-39d53a2404f3","layer":0,"snapshot":"702b74e25fd46b5564423fdca6f0b9075db6e688"}', NULL, NULL, '\xac63f9badc1cb01f553e3a641236e392');
INSERT INTO agentos_recorded.event VALUES (1, 10, 1794816035415571, 8, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\x8a87607c8fd63afb309b144b82f44408');
INSERT INTO agentos_recorded.event VALUES (1, 11, 1794816035415571, 19, 1, '{"gate_id":"approve:ship","kind":"approve","task_id":"ship","layer":1,"place":"000001","question":"Ship it?","shown":"46da797065656194176720ef1cf87749","inputs":"{\"run\":\"echo ship >> .git/trace; echo shipped > shipped.txt\"}","command":"agentos approve gate-1 approve:ship"}', NULL, NULL, '\x3c8f6c10678c94776e8bcc78029baec4');
INSERT INTO agentos_recorded.event VALUES (1, 12, 1794816035415571, 7, 1, '{"reason":"waiting","gates":["approve:ship"]}', NULL, NULL, '\x3ebd1f066ef570956582ea129d50bfdd');
INSERT INTO agentos_recorded.event VALUES (2, 1, 1794816035971880, 1, 1, '{"name":"failing","total_layers":3,"plan_fingerprint":"1:258b91f33c05c5fbee57a1c369a44ff0b1732627ac6be65eec6334c558eed844"}', NULL, NULL, '\xe9a8efb5f4d22e4a2e4b37e03d34ca17');
INSERT INTO agentos_recorded.event VALUES (2, 2, 1794816035971880, 2, 1, '{"token":1,"holder":"process 11800 on recorder"}', NULL, NULL, '\x123f40d2db69450aa1b54bbbe2f28d3a');
INSERT INTO agentos_recorded.event VALUES (2, 3, 1794816035971880, 8, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\xcff14f89c0a764c99b01c1cdbbda3be5');
INSERT INTO agentos_recorded.event VALUES (2, 4, 1794816035971880, 9, 1, '{"task_id":"price","layer":0,"attempt":1}', NULL, NULL, '\x54ca0af7bd3cd4f21e7f5cdf093334ad');
INSERT INTO agentos_recorded.event VALUES (2, 5, 1794816035975255, 12, 1, '{"task_id":"price","layer":0,"place":"000000","attempt":1,"output":{"cents":1299},"execution_time_ms":1.045}', NULL, NULL, '\xe6d098e3b0393d5a8e0a2e093b321468');
INSERT INTO agentos_recorded.event VALUES (2, 6, 1794816035975255, 16, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\x3950f27f9b2599ea3f569c51239d930b');
INSERT INTO agentos_recorded.event VALUES (2, 7, 1794816035975255, 17, 1, '{"checkpoint_id":"01a1e35f-4c87-7a55-b9ae-2085f7693a70","layer":0}', NULL, NULL, '\xb3b2e8b1563f2dfbca65e2e231a36f0d');
INSERT INTO agentos_recorded.event VALUES (2, 8, 1794816035975255, 8, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\xbf2829a23376da7c2439a4a174093217');
INSERT INTO agentos_recorded.event VALUES (2, 9, 1794816035975255, 9, 1, '{"task_id":"charge","layer":1,"attempt":1}', NULL, NULL, '\xdc4982f2c2af35ae1b8b3f3bb770fbe9');
INSERT INTO agentos_recorded.event VALUES (2, 10, 1794816035979155, 11, 1, '{"task_id":"charge","layer":1,"attempt":1,"not_before":"2026-11-16T08:00:35.990893Z","error":{"type":"RuntimeError","text":"the card was declined","traceback":"Traceback (most recent call last):\n  File \"/tmp/agentos-recorded-yo6ad52f/postgres/failing.py\", line 22, in charge\n    raise RuntimeError(\"the card was declined\")\nRuntimeError: the card was declined\n"}}', NULL, NULL, '\x04bfbd81598459a5a48afe0d1ebd5512');
INSERT INTO agentos_recorded.event VALUES (2, 11, 1794816035991930, 9, 1, '{"task_id":"charge","layer":1,"attempt":2}', NULL, NULL, '\x4c05f534b47d2fe1257e029801a148f9');
INSERT INTO agentos_recorded.event VALUES (2, 12, 1794816035994608, 13, 1, '{"task_id":"charge","layer":1,"place":"000001","attempt":2,"error":{"type":"RuntimeError","text":"the card was declined","traceback":"Traceback (most recent call last):\n  File \"/tmp/agentos-recorded-yo6ad52f/postgres/failing.py\", line 22, in charge\n    raise RuntimeError(\"the card was declined\")\nRuntimeError: the card was declined\n"},"execution_time_ms":1.18}', NULL, NULL, '\x6411754efcdf2159e48e0436dc26c0d9');
INSERT INTO agentos_recorded.event VALUES (2, 13, 1794816035994608, 16, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\x7a63b7da75a31602ddb2c4acab136801');
INSERT INTO agentos_recorded.event VALUES (2, 14, 1794816035994608, 17, 1, '{"checkpoint_id":"01a1e35f-4c9a-7d80-a687-5d2e3cd5967d","layer":1}', NULL, NULL, '\x3b2c726844c379d28952b24e9991d194');
INSERT INTO agentos_recorded.event VALUES (2, 15, 1794816035994608, 8, 1, '{"layer":2,"tasks":1}', NULL, NULL, '\xac4a9cebf3d42f50fec2a26c81d9d4dd');
INSERT INTO agentos_recorded.event VALUES (2, 16, 1794816035994608, 14, 1, '{"task_id":"receipt","layer":2,"place":"000002","because":"charge"}', NULL, NULL, '\xb9560837452385480d1ba33eef6fef85');
INSERT INTO agentos_recorded.event VALUES (2, 17, 1794816035994608, 16, 1, '{"layer":2,"tasks":1}', NULL, NULL, '\x722de3db23a413b8bcd58da5360b406d');
INSERT INTO agentos_recorded.event VALUES (2, 18, 1794816035994608, 17, 1, '{"checkpoint_id":"01a1e35f-4c9a-7d23-85a2-2e6a145196b2","layer":2}', NULL, NULL, '\xbb4f2579bd884e7752047cde47223c2c');
INSERT INTO agentos_recorded.event VALUES (2, 19, 1794816035994608, 5, 1, '{"reason":"1 task failed","failed":["charge"]}', NULL, NULL, '\xb897400e3397a60af544428a1940cf5c');
INSERT INTO agentos_recorded.event VALUES (3, 1, 1794816036511731, 1, 1, '{"name":"steps","total_layers":3,"plan_fingerprint":"1:efb027f79cb9f3ab6c40c00e2a89b526e4e53b12ac2491d01e953b8df8537a7c"}', NULL, NULL, '\x900e361f1de0ee243c464d9d93ede593');
INSERT INTO agentos_recorded.event VALUES (3, 2, 1794816036511731, 2, 1, '{"token":1,"holder":"process 11811 on recorder"}', NULL, NULL, '\x8e06473b54d0f9c4a3a9e65b92293aa3');
INSERT INTO agentos_recorded.event VALUES (3, 3, 1794816036511731, 8, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\x3ada3fed9875ca89b4962dc921e0c0ab');
INSERT INTO agentos_recorded.event VALUES (3, 4, 1794816036511731, 9, 1, '{"task_id":"one","layer":0,"attempt":1}', NULL, NULL, '\x5aa6f999ebb0a306236e35cfecd5a1e8');
INSERT INTO agentos_recorded.event VALUES (3, 5, 1794816036525237, 10, 1, '{"task_id":"one","layer":0,"attempt":1,"pid":11820,"pgid":11820,"started":699.83}', NULL, NULL, '\xa6354df21b8858662ae46c179fdfa13f');
INSERT INTO agentos_recorded.event VALUES (3, 6, 1794816036530741, 12, 1, '{"task_id":"one","layer":0,"place":"000000","attempt":1,"output":{"stdout":"first","stderr":"","exit_code":0},"execution_time_ms":9.628}', NULL, NULL, '\x5fe6200b9a7a4ea290018c64d48f00ed');
INSERT INTO agentos_recorded.event VALUES (3, 7, 1794816036530741, 16, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\x5361b057ff41a93f387ee2173c0e98bf');
INSERT INTO agentos_recorded.event VALUES (3, 8, 1794816036530741, 17, 1, '{"checkpoint_id":"01a1e35f-4eb2-740f-bc02-9a0f3bf3979a","layer":0}', NULL, NULL, '\x03abe6bf9d97e6f3c3f37c96add5fcee');
INSERT INTO agentos_recorded.event VALUES (3, 9, 1794816036530741, 8, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\xd22459de1f7dbe9f1f5f7d30ea7ecae7');
INSERT INTO agentos_recorded.event VALUES (3, 10, 1794816036530741, 9, 1, '{"task_id":"two","layer":1,"attempt":1}', NULL, NULL, '\x0f1f94ab43737735dcac440cf42df0ef');
INSERT INTO agentos_recorded.event VALUES (3, 11, 1794816036533304, 10, 1, '{"task_id":"two","layer":1,"attempt":1,"pid":11822,"pgid":11822,"started":699.84}', NULL, NULL, '\xf3ec291ee6af465f53a3205eb9cc36ca');
INSERT INTO agentos_recorded.event VALUES (3, 12, 1794816036537826, 12, 1, '{"task_id":"two","layer":1,"place":"000001","attempt":1,"output":{"stdout":"second","stderr":"","exit_code":0},"execution_time_ms":5.416}', NULL, NULL, '\xb63e7371102b4c9c85ed21d97c0fbae1');
INSERT INTO agentos_recorded.event VALUES (3, 13, 1794816036537826, 16, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\x6ebba8da105b1d75209325e701bfcb96');
INSERT INTO agentos_recorded.event VALUES (3, 14, 1794816036537826, 17, 1, '{"checkpoint_id":"01a1e35f-4eb9-7f60-9534-798108b4cc95","layer":1}', NULL, NULL, '\x15e39a210b5cdda9dbc603d585ad7132');
INSERT INTO agentos_recorded.event VALUES (3, 15, 1794816036537826, 8, 1, '{"layer":2,"tasks":1}', NULL, NULL, '\xcab8e23e05a82da4b0fb5c769880bc37');
INSERT INTO agentos_recorded.event VALUES (3, 16, 1794816036537826, 9, 1, '{"task_id":"three","layer":2,"attempt":1}', NULL, NULL, '\xced0ef98b6141f2b01728b25ea49c893');
INSERT INTO agentos_recorded.event VALUES (3, 17, 1794816036540475, 10, 1, '{"task_id":"three","layer":2,"attempt":1,"pid":11823,"pgid":11823,"started":699.85}', NULL, NULL, '\x2730cd82bbf58b7005b73344057a879f');
INSERT INTO agentos_recorded.event VALUES (3, 18, 1794816036545234, 12, 1, '{"task_id":"three","layer":2,"place":"000002","attempt":1,"output":{"stdout":"third","stderr":"","exit_code":0},"execution_time_ms":6.102}', NULL, NULL, '\x1ddc5f930fcef4845a55f5fc7b3c42d1');
INSERT INTO agentos_recorded.event VALUES (3, 19, 1794816036545234, 16, 1, '{"layer":2,"tasks":1}', NULL, NULL, '\x71ca708eaff0dc73285614666244a50b');
INSERT INTO agentos_recorded.event VALUES (3, 20, 1794816036545234, 17, 1, '{"checkpoint_id":"01a1e35f-4ec1-7e47-9aec-47a757f6888e","layer":2}', NULL, NULL, '\x1f05d3779e207e2e950bf497c471eff2');
INSERT INTO agentos_recorded.event VALUES (3, 21, 1794816036545234, 4, 1, '{}', NULL, NULL, '\x247ef08dbca9b74279b824b4fffaf9ae');
INSERT INTO agentos_recorded.event VALUES (4, 1, 1794816037440058, 26, 1, '{"parent_id":"steps-1","checkpoint_id":"01a1e35f-4eb2-740f-bc02-9a0f3bf3979a","current_layer":0,"results":[{"type":"task_complete","task_id":"one","layer":0,"place":"000000","attempt":1,"output":{"stdout":"first","stderr":"","exit_code":0},"execution_time_ms":9.628}]}', NULL, NULL, '\xdf5324395c05514464ad37c41b5308f8');
INSERT INTO agentos_recorded.event VALUES (4, 2, 1794816037440058, 1, 1, '{"name":"steps","total_layers":3,"resumed_from":0,"plan_fingerprint":"1:efb027f79cb9f3ab6c40c00e2a89b526e4e53b12ac2491d01e953b8df8537a7c"}', NULL, NULL, '\xf50a0a060ccc33d5da0f1f78f50c0b2e');
INSERT INTO agentos_recorded.event VALUES (4, 3, 1794816037440058, 2, 1, '{"token":1,"holder":"process 11832 on recorder"}', NULL, NULL, '\x647175f4bff42bceca77dcc9ee869466');
INSERT INTO agentos_recorded.event VALUES (4, 4, 1794816037440058, 3, 1, '{"plan_revision":1,"skipped_layers":1,"counts":{"reuse":1,"run":2}}', NULL, NULL, '\xd58eac45f1e1c95e9d573b93efd27409');
INSERT INTO agentos_recorded.event VALUES (4, 5, 1794816037440058, 8, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\x5281f735218ecaef68559b55d45ef522');
INSERT INTO agentos_recorded.event VALUES (4, 6, 1794816037440058, 9, 1, '{"task_id":"two","layer":1,"attempt":1}', NULL, NULL, '\x764945ca0b6ae0b56391ccfc929fb746');
INSERT INTO agentos_recorded.event VALUES (4, 7, 1794816037460896, 10, 1, '{"task_id":"two","layer":1,"attempt":1,"pid":11842,"pgid":11842,"started":700.77}', NULL, NULL, '\xaf6710ca97f8d09205725d267a0ef109');
INSERT INTO agentos_recorded.event VALUES (5, 1, 1794816038191831, 1, 1, '{"name":"cut","total_layers":3,"plan_fingerprint":"1:651b24826c62d1d9a9d774ed6b29e0a2f244521a4f3455049a0896f17c01f4d6"}', NULL, NULL, '\x2fdb15dbc6cfd362459345b323f5209f');
INSERT INTO agentos_recorded.event VALUES (5, 2, 1794816038191831, 2, 1, '{"token":1,"holder":"process 11844 on recorder"}', NULL, NULL, '\x1499088115429b5da6a6b2ca554e73d5');
INSERT INTO agentos_recorded.event VALUES (5, 3, 1794816038191831, 28, 1, '{"snapshot":"f611ee2d50a90ec6e25bf9940ad065b136af73a6","tree":"ec095da7367ef898736b1f4a9c7bea2ffcd9a97f","why":"start"}', NULL, NULL, '\xfb4c20c18e21eb95295528f5abc896b7');
INSERT INTO agentos_recorded.event VALUES (5, 4, 1794816038191831, 8, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\xb3b27a9ea6ff865731cb6a3178cc4338');
INSERT INTO agentos_recorded.event VALUES (5, 5, 1794816038191831, 9, 1, '{"task_id":"write","layer":0,"attempt":1}', NULL, NULL, '\x9d6c4c1bbb4c538b8b756d078224e690');
INSERT INTO agentos_recorded.event VALUES (5, 6, 1794816038219347, 28, 1, '{"snapshot":"723bc5d5808623e1e416671cb4257f0204544f92","tree":"ec095da7367ef898736b1f4a9c7bea2ffcd9a97f","why":"attempt","task_id":"write"}', NULL, NULL, '\x55a10e9aa463f2335c04e6f38314dc70');
INSERT INTO agentos_recorded.event VALUES (5, 7, 1794816038239270, 10, 1, '{"task_id":"write","layer":0,"attempt":1,"pid":11889,"pgid":11889,"started":701.55}', NULL, NULL, '\x78738a47cd3e3e4ec0e6d994f4daca1c');
INSERT INTO agentos_recorded.event VALUES (5, 8, 1794816038268906, 28, 1, '{"snapshot":"587a3e0cf12a67730d3467edf82cd482226b5fc5","tree":"18059bbbca73080a7cfcaeb7f8a725e238e2065b","why":"task","task_id":"write"}', NULL, NULL, '\x587f2719e7c0bd7ed4e0ba23d5583523');
INSERT INTO agentos_recorded.event VALUES (5, 9, 1794816038270055, 12, 1, '{"task_id":"write","layer":0,"place":"000000","attempt":1,"output":{"stdout":"","stderr":"","exit_code":0},"execution_time_ms":11.634}', NULL, NULL, '\x6efd6d7afcd70ca9d9c7ef403a8fc8cc');
INSERT INTO agentos_recorded.event VALUES (5, 10, 1794816038289610, 16, 1, '{"layer":0,"tasks":1}', NULL, NULL, '\x91097e1376b5f0c1304e7628da46d770');
INSERT INTO agentos_recorded.event VALUES (5, 11, 1794816038289610, 17, 1, '{"checkpoint_id":"01a1e35f-5591-7491-89b6-e34bb8377f82","layer":0,"snapshot":"587a3e0cf12a67730d3467edf82cd482226b5fc5"}', NULL, NULL, '\x3f4fe5b2483717d6ceaadcb357a3114c');
INSERT INTO agentos_recorded.event VALUES (5, 12, 1794816038289610, 8, 1, '{"layer":1,"tasks":1}', NULL, NULL, '\xc3764599fff7fbb4320c99f33ad26d57');
INSERT INTO agentos_recorded.event VALUES (5, 13, 1794816038289610, 9, 1, '{"task_id":"edit","layer":1,"attempt":1}', NULL, NULL, '\x8d8dc6a2cfd48e478751b14f8d95620a');
INSERT INTO agentos_recorded.event VALUES (5, 14, 1794816038305673, 28, 1, '{"snapshot":"0bb284e1e75422c15adce21ddcea5443f5e703b0","tree":"18059bbbca73080a7cfcaeb7f8a725e238e2065b","why":"attempt","task_id":"edit"}', NULL, NULL, '\x474e21a7cc52ccfda7fbf8a394e516dc');
INSERT INTO agentos_recorded.event VALUES (5, 15, 1794816038308578, 10, 1, '{"task_id":"edit","layer":1,"attempt":1,"pid":11912,"pgid":11912,"started":701.62}', NULL, NULL, '\xe753c95b726556fa6935e67ec24b2f50');
INSERT INTO agentos_recorded.event_type VALUES (1, 'workflow_start');
INSERT INTO agentos_recorded.event_type VALUES (2, 'lease_taken');
INSERT INTO agentos_recorded.event_type VALUES (3, 'resume_planned');
INSERT INTO agentos_recorded.event_type VALUES (4, 'workflow_complete');
INSERT INTO agentos_recorded.event_type VALUES (5, 'workflow_failed');
INSERT INTO agentos_recorded.event_type VALUES (6, 'workflow_aborted');
INSERT INTO agentos_recorded.event_type VALUES (7, 'workflow_paused');
INSERT INTO agentos_recorded.event_type VALUES (8, 'layer_start');
INSERT INTO agentos_recorded.event_type VALUES (9, 'task_start');
INSERT INTO agentos_recorded.event_type VALUES (10, 'task_process');
INSERT INTO agentos_recorded.event_type VALUES (11, 'task_retry');
INSERT INTO agentos_recorded.event_type VALUES (12, 'task_complete');
INSERT INTO agentos_recorded.event_type VALUES (13, 'task_error');
INSERT INTO agentos_recorded.event_type VALUES (14, 'task_skipped');
INSERT INTO agentos_recorded.event_type VALUES (15, 'task_warning');
INSERT INTO agentos_recorded.event_type VALUES (16, 'state_updated');
INSERT INTO agentos_recorded.event_type VALUES (17, 'checkpoint');
INSERT INTO agentos_recorded.event_type VALUES (18, 'checkpoint_failed');
INSERT INTO agentos_recorded.event_type VALUES (19, 'decision_required');
INSERT INTO agentos_recorded.event_type VALUES (20, 'decision_made');
INSERT INTO agentos_recorded.event_type VALUES (21, 'command_received');
INSERT INTO agentos_recorded.event_type VALUES (22, 'command_applied');
INSERT INTO agentos_recorded.event_type VALUES (23, 'command_refused');
INSERT INTO agentos_recorded.event_type VALUES (24, 'plan_changed');
INSERT INTO agentos_recorded.event_type VALUES (25, 'rolled_back');
INSERT INTO agentos_recorded.event_type VALUES (26, 'run_forked');
INSERT INTO agentos_recorded.event_type VALUES (27, 'state_saved');
INSERT INTO agentos_recorded.event_type VALUES (28, 'files_captured');
INSERT INTO agentos_recorded.event_type VALUES (29, 'files_restored');
INSERT INTO agentos_recorded.event_type VALUES (30, 'files_merged');
INSERT INTO agentos_recorded.event_type VALUES (31, 'task_session');
INSERT INTO agentos_recorded.event_type VALUES (32, 'task_usage');
INSERT INTO agentos_recorded.meta VALUES ('application', 'agentos');
INSERT INTO agentos_recorded.meta VALUES ('made_at', '2026-11-16T08:00:35+00:00');
INSERT INTO agentos_recorded.meta VALUES ('schema', '1');
INSERT INTO agentos_recorded.plan VALUES (1, 1, '\x78016d90d14e843010457fa59967b2b6bb8280097e848f8687964ed9666bc1b6180de1df1d58a371a54fd3cebd33f774062f5f116ae86542c820624ad6f711ea79c920c978a1f265068dc67a9bece0a9035693434dd669b25cac5faff18cced1354c2401ecce03db14ac69d8a1b7e92e05d9e123fbe92412a331d8a57505f8c123b4b4d4c94f0c50f30c46470e1ac6b74372cad0631883f5899e455d15d8e51a8b07ce4ffa541e114d294a2173537291171d2cd96ef478b6e3ffe41e516f51ae64ed1f96d5b28bb23646d4ac61dfd5217ddca019eb3002cd93e3188677429ae16dc278fd4e785e47dbf404cb2fbdb8a1173bf4f9512b59948512828bfbaaa3820b959b4a2854aa92b0b4cb172d5097d3', '\x6696292e0408be72c04c75e573e1615f');
INSERT INTO agentos_recorded.plan VALUES (2, 1, '\x780175924d6ee3300c85af5208b3340a49d68fe5abb4c18092c85488eb048eba080cdf7de8d4d34cd38c5714a9f7487ef22c467847d10b823294712f1a71c65a393a8b7e5e1a51e17ce0f0651619a98ca596e3c81551328b4e5349c8924319afc74b7de36a23120cc3cdb3ff7b2d1df3da0a3bd29d5452eb9c216be41034b43a538bd8b92cb8ed00179c442f1b711a807bf4425e3f36e729f638b1e75839ad7a6bba8820d16513b1d391721b0204a5380a2d6ab67b387c7a8369ff68fa1131af2b6febed7eecf3a5dc1652d191b76d2227b3b336a296a49281084ef20086872ee3e9a3ae4837d35efc9ae7a72bdc97d7cfdcabd83d1f3f2adf7b5a9695c18475baac923528c86ad58808e97024facd27f92cd57263c5c56facd4035668b2d5ca678ca05b422f2100908fe45df09eecff584d98b09c2a3bde3ff517ac0dca4f5a37ed868b521ba4b41d49244ad27406a54dce69b21e153fd8bfb836dbefbc3e9377c06e24f41d89d5f1feaf8904c90399a492d6411b19080d41344962eb3b2396ddf207423cf9f2', '\xb85b970f3602433ce4ad1fce00048c61');
INSERT INTO agentos_recorded.plan VALUES (3, 1, '\x78018591dd4ec3300c855fa5f275054dbb2c4d91f6226817f9b1d768259d922084a6bd3b6e2f90360ae42ab1cfb1cfa75c219a37840172c14b861a329612e229c370bdd5504c3ef3f5f50a1e29c450c21cb903c1b3658ec8867388cb238f384dfc4cef2c0074e35c71bf3a1caaa75328cf2519872fd55aa79072612912a12bcb7888cbac232f9ccc2726189a1a2e133b7854b31e96f3fe13a64b0ab170590cc6da5eb58e8c6cfa5e0bdb75a2dba137bdf17b44e9e0566fc62e1ff3cfd811d1af49d6207718acdfc4c8e86646ff93433c70880d8eae693aa37b545e522fb42365a5947aa7956b49a2fe95634cb8f101df240be7f19e64716cb29431a47f50da07947603855aa138b522a7d1a3254d683a6b1491b57b6b18e578fb02783bc4a0', '\x7a6224e89efb3ff7689a16d79d62f2d1');
INSERT INTO agentos_recorded.plan VALUES (4, 1, '\x78018591dd4ec3300c855fa5f275054dbb2c4d91f6226817f9b1d768259d922084a6bd3b6e2f90360ae42ab1cfb1cfa75c219a37840172c14b861a329612e229c370bdd5504c3ef3f5f50a1e29c450c21cb903c1b3658ec8867388cb238f384dfc4cef2c0074e35c71bf3a1caaa75328cf2519872fd55aa79072612912a12bcb7888cbac232f9ccc2726189a1a2e133b7854b31e96f3fe13a64b0ab170590cc6da5eb58e8c6cfa5e0bdb75a2dba137bdf17b44e9e0566fc62e1ff3cfd811d1af49d6207718acdfc4c8e86646ff93433c70880d8eae693aa37b545e522fb42365a5947aa7956b49a2fe95634cb8f101df240be7f19e64716cb29431a47f50da07947603855aa138b522a7d1a3254d683a6b1491b57b6b18e578fb02783bc4a0', '\x39e846540953b5a0ba94c6711ba69587');
INSERT INTO agentos_recorded.plan VALUES (5, 1, '\x78018552db8edb2010fd15c46bd32c065f13293fb2c90386c146c143649366ab28ff5e70d26d1da55dbfc0cc9c3333e7982b453900dd50750e74452708c16237d1cdf5b6a2414ec7787dbf520dc6a20dd663ac50ab23e132da009172b498c2a907e762389e238482ea3d991164b723ebce86b7304a055bf2590980a9863ec0b40e1fe151ea3c02d911ef744ac686600ca890d6a0c63a98e8216ee6e44f18e986ade8c9c5b671229bbf888f8b76309e468b21a6b38de055cd449515aa122528ae0c54a2a9ea1c789b1765496fab97fa40db34fe491e02e87997bbfcc34270a22cf5ee71d69b0aa01772f7380ebf55ee71386a3b92416a7830102ed18594788bd764c51e553f784dbe7d90e0bd5b4ffd03da4b6722361d77dc198375e49d7c87bbf39d27872dd19e4c0ee044d89a1529c4386bf8f1c92397de3bb877f8c2f6ecc9f6ec85ed5236c0455e15452d4a93e9a691ac56ad6c5a266ac8ccbf6c77de1fff63fbfc5796ae27c6d2f52d5132fc79594b351885fffd86f89318fe424c0e6d55b0861953b04ce8262fb9e075c504b405cf72496f87db2f5fa90e08', '\x3a0eaac3c66ed249264f234b98ba5c09');
INSERT INTO agentos_recorded.run OVERRIDING SYSTEM VALUE VALUES (1, 1, 'gate-1', 'gate', 'workflow', 'waiting', 1, 2, 0, 12, '\x3ebd1f066ef570956582ea129d50bfdd', 1, 1, NULL, '1970-01-01 00:00:00+00', 1794816035293342, 1794816035415571, '{"file":"gate.yaml","module":"","name":"gate"}', '/tmp/agentos-recorded-yo6ad52f/postgres', 'recorder', '1:d821a4385be7a6090b363dc8e7d734febb3b92e3aad3362f06a32cc49aee3544', NULL, '[]');
INSERT INTO agentos_recorded.run OVERRIDING SYSTEM VALUE VALUES (2, 1, 'failed-1', 'failing', 'workflow', 'failed', 2, 3, 0, 19, '\xb897400e3397a60af544428a1940cf5c', 1, 1, NULL, '1970-01-01 00:00:00+00', 1794816035966688, 1794816035994608, '{"file":"failing.py","module":"failing","name":"failing"}', '/tmp/agentos-recorded-yo6ad52f/postgres', 'recorder', '1:23a51bf330344b886d6efce10cc4c7653cf60e4db6fc0e2020a2dc40b9163dea', NULL, '[]');
INSERT INTO agentos_recorded.run OVERRIDING SYSTEM VALUE VALUES (3, 1, 'steps-1', 'steps', 'workflow', 'complete', 2, 3, 0, 21, '\x247ef08dbca9b74279b824b4fffaf9ae', 1, 1, NULL, '1970-01-01 00:00:00+00', 1794816036507541, 1794816036545234, '{"file":"steps.yaml","module":"","name":"steps"}', '/tmp/agentos-recorded-yo6ad52f/postgres', 'recorder', '1:b455cd288f71f00fe62f724e240d018878301d0af2188e826f525c86eb0ab133', NULL, '[]');
INSERT INTO agentos_recorded.run OVERRIDING SYSTEM VALUE VALUES (4, 1, 'fork-1', 'steps', 'workflow', 'running', 1, 3, 0, 7, '\xaf6710ca97f8d09205725d267a0ef109', 1, 1, '{"host":"recorder","boot":"00aa25ec-8a26-426c-804b-58e708c0366f","pidns":"pid:[4026531836]","pid":11832,"started":700.24}', '2026-11-16 08:00:52.436642+00', 1794816037427980, 1794816037460896, '{"file":"steps.yaml","module":"","name":"steps"}', '/tmp/agentos-recorded-yo6ad52f/postgres', 'recorder', '1:b455cd288f71f00fe62f724e240d018878301d0af2188e826f525c86eb0ab133', 'steps-1', '[]');
INSERT INTO agentos_recorded.run OVERRIDING SYSTEM VALUE VALUES (5, 1, 'cut-1', 'cut', 'workflow', 'running', 1, 3, 0, 15, '\xe753c95b726556fa6935e67ec24b2f50', 1, 1, '{"host":"recorder","boot":"00aa25ec-8a26-426c-804b-58e708c0366f","pidns":"pid:[4026531836]","pid":11844,"started":700.79}', '2026-11-16 08:00:53.157348+00', 1794816038123029, 1794816038308578, '{"file":"cut.yaml","module":"","name":"cut"}', '/tmp/agentos-recorded-yo6ad52f/postgres', 'recorder', '1:0ba40f444b669d2026fa89299191b55f3c928e23340eeb1546c0da7942a77c61', NULL, '[]');
INSERT INTO agentos_recorded.scope OVERRIDING SYSTEM VALUE VALUES (1, 'example.invalid/recorded', '');
SELECT pg_catalog.setval('agentos_recorded.inbox_no_seq', 1, false);
SELECT pg_catalog.setval('agentos_recorded.run_no_seq', 5, true);
SELECT pg_catalog.setval('agentos_recorded.scope_no_seq', 1, true);
ALTER TABLE ONLY agentos_recorded.blob
    ADD CONSTRAINT blob_pkey PRIMARY KEY (run, digest);
ALTER TABLE ONLY agentos_recorded.checkpoint
    ADD CONSTRAINT checkpoint_pkey PRIMARY KEY (run, sequence);
ALTER TABLE ONLY agentos_recorded.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (run, seq);
ALTER TABLE ONLY agentos_recorded.event_type
    ADD CONSTRAINT event_type_pkey PRIMARY KEY (code);
ALTER TABLE ONLY agentos_recorded.follower
    ADD CONSTRAINT follower_pkey PRIMARY KEY (run);
ALTER TABLE ONLY agentos_recorded.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (no);
ALTER TABLE ONLY agentos_recorded.inbox
    ADD CONSTRAINT inbox_run_id_key UNIQUE (run, id);
ALTER TABLE ONLY agentos_recorded.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);
ALTER TABLE ONLY agentos_recorded.plan
    ADD CONSTRAINT plan_pkey PRIMARY KEY (run, revision);
ALTER TABLE ONLY agentos_recorded.run
    ADD CONSTRAINT run_pkey PRIMARY KEY (no);
ALTER TABLE ONLY agentos_recorded.run
    ADD CONSTRAINT run_scope_id_key UNIQUE (scope, id);
ALTER TABLE ONLY agentos_recorded.scope
    ADD CONSTRAINT scope_pkey PRIMARY KEY (no);
ALTER TABLE ONLY agentos_recorded.scope
    ADD CONSTRAINT scope_repository_worktree_key UNIQUE (repository, worktree);
CREATE INDEX checkpoint_id ON agentos_recorded.checkpoint USING btree (id);
CREATE INDEX event_turn ON agentos_recorded.event USING btree (run, seq) WHERE ((type = 3) OR ((type >= 24) AND (type <= 26)));
CREATE INDEX inbox_open ON agentos_recorded.inbox USING btree (run, no) WHERE (consumed_at IS NULL);
CREATE INDEX run_held ON agentos_recorded.run USING btree (lease_until) WHERE (holder IS NOT NULL);
CREATE INDEX run_id ON agentos_recorded.run USING btree (id);
CREATE INDEX run_newest ON agentos_recorded.run USING btree (scope, created_at DESC, no DESC);
CREATE INDEX run_status ON agentos_recorded.run USING btree (scope, status, created_at DESC, no DESC);


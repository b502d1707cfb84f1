-- The statements of sql/graph_threads.sql for PostgreSQL: same names, arguments and columns. As in queries.sql beside this,
-- $schema stands for our schema, and $scope for the numbers of the scopes that are looked at, behind the other arguments.

-- version: of these tables; 0 where they were never made
SELECT coalesce((SELECT value::bigint FROM $schema.meta WHERE key = 'langgraph_schema'), 0);

-- set_version: they are made, or migrated
INSERT INTO $schema.meta (key, value) VALUES ('langgraph_schema', $1) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- add_thread: unless it is there
INSERT INTO $schema.langgraph_thread (scope, id) VALUES (($scope::bigint[])[1], $1) ON CONFLICT (scope, id) DO NOTHING;

-- hold_thread: its number; it is not deleted before this transaction ends
SELECT no FROM $schema.langgraph_thread WHERE id = $1 AND scope = ANY ($scope::bigint[]) FOR KEY SHARE;

-- hold_parent: the number of a thread, and a checkpoint's head; neither is deleted before this transaction ends. The
-- checkpoint is locked, too, for what was pruned while this waited for the thread would seem to be there still.
SELECT t.no, c.head FROM $schema.langgraph_thread AS t JOIN $schema.langgraph_checkpoint AS c ON c.thread = t.no
WHERE t.id = $1 AND t.scope = ANY ($scope::bigint[]) AND c.ns = $2 AND c.id = $3 FOR KEY SHARE OF t, c;

-- lock_thread: its number; nobody else writes to it before this transaction ends
SELECT no FROM $schema.langgraph_thread WHERE id = $1 AND scope = ANY ($scope::bigint[]) FOR UPDATE;

-- find_checkpoint: one by its id
SELECT t.no, t.id, c.ns, c.id, c.parent, c.head, c.type, c.metadata
FROM $schema.langgraph_thread AS t JOIN $schema.langgraph_checkpoint AS c ON c.thread = t.no
WHERE t.id = $1 AND t.scope = ANY ($scope::bigint[]) AND c.ns = $2 AND c.id = $3;

-- newest_checkpoint: the one whose id sorts last
SELECT t.no, t.id, c.ns, c.id, c.parent, c.head, c.type, c.metadata
FROM $schema.langgraph_thread AS t JOIN $schema.langgraph_checkpoint AS c ON c.thread = t.no
WHERE t.id = $1 AND t.scope = ANY ($scope::bigint[]) AND c.ns = $2 ORDER BY c.id DESC LIMIT 1;

-- list_checkpoints: newest first; of one thread, one namespace, one id, with ids before another: NULL is any
SELECT t.no, t.id, c.ns, c.id, c.parent, c.head, c.type, c.metadata
FROM $schema.langgraph_thread AS t JOIN $schema.langgraph_checkpoint AS c ON c.thread = t.no
WHERE ($1::text IS NULL OR t.id = $1) AND ($2::text IS NULL OR c.ns = $2) AND ($3::text IS NULL OR c.id = $3)
AND ($4::text IS NULL OR c.id < $4) AND t.scope = ANY ($scope::bigint[]) ORDER BY c.id DESC LIMIT $5;

-- list_ancestors: a checkpoint's parent, its parent and so on, nearest first, at most so many
WITH RECURSIVE up (depth, parent) AS (
    SELECT 0, parent FROM $schema.langgraph_checkpoint WHERE thread = $1 AND ns = $2 AND id = $3
    UNION ALL
    SELECT u.depth + 1, c.parent FROM up AS u JOIN $schema.langgraph_checkpoint AS c
    ON c.thread = $1 AND c.ns = $2 AND c.id = u.parent WHERE u.depth < $4::bigint - 1
)
SELECT c.id, c.head FROM up AS u JOIN $schema.langgraph_checkpoint AS c ON c.thread = $1 AND c.ns = $2 AND c.id = u.parent
ORDER BY u.depth;

-- put_checkpoint: in the place of one of that id
INSERT INTO $schema.langgraph_checkpoint (thread, ns, id, parent, head, type, metadata) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (thread, ns, id) DO UPDATE SET parent = excluded.parent, head = excluded.head, type = excluded.type,
    metadata = excluded.metadata;

-- add_value: a value that is whole, or edits of another
INSERT INTO $schema.langgraph_value (thread, no, base, depth, type, body) VALUES ($1, $2, $3, $4, $5, $6);

-- read_values: these, and all they are made of
WITH RECURSIVE need (no) AS (
    SELECT value::bigint FROM json_array_elements_text($2::json) AS given (value)
    UNION
    SELECT v.base FROM need AS n JOIN $schema.langgraph_value AS v ON v.thread = $1 AND v.no = n.no WHERE v.base <> 0
)
SELECT v.no, v.base, v.depth, v.type, v.body FROM need AS n JOIN $schema.langgraph_value AS v ON v.thread = $1 AND v.no = n.no;

-- keep_write: unless the task wrote one of this number before
INSERT INTO $schema.langgraph_write (thread, ns, checkpoint, path, task, idx, channel, type, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (thread, ns, checkpoint, task, idx) DO NOTHING;

-- replace_write: in the place of the one that the task wrote before
INSERT INTO $schema.langgraph_write (thread, ns, checkpoint, path, task, idx, channel, type, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (thread, ns, checkpoint, task, idx)
DO UPDATE SET path = excluded.path, channel = excluded.channel, type = excluded.type, body = excluded.body;

-- list_writes: on top of these checkpoints of a namespace, in the order in which they count
SELECT w.checkpoint, w.task, w.channel, w.type, w.body
FROM json_array_elements_text($3::json) AS asked (value) JOIN $schema.langgraph_write AS w
ON w.thread = $1 AND w.ns = $2 AND w.checkpoint = asked.value
ORDER BY w.checkpoint, w.path, w.task, w.idx;

-- delete_writes: on top of one checkpoint
DELETE FROM $schema.langgraph_write WHERE thread = $1 AND ns = $2 AND checkpoint = $3;

-- delete_checkpoint: the row of one
DELETE FROM $schema.langgraph_checkpoint WHERE thread = $1 AND ns = $2 AND id = $3;

-- delete_values: all that these are not made of
DELETE FROM $schema.langgraph_value WHERE thread = $1 AND no NOT IN (
    WITH RECURSIVE need (no) AS (
        SELECT value::bigint FROM json_array_elements_text($2::json) AS given (value)
        UNION
        SELECT v.base FROM need AS n JOIN $schema.langgraph_value AS v ON v.thread = $1 AND v.no = n.no WHERE v.base <> 0
    ) SELECT no FROM need);

-- delete_thread_values: with the whole thread
DELETE FROM $schema.langgraph_value WHERE thread = $1;

-- delete_thread_writes: with the whole thread
DELETE FROM $schema.langgraph_write WHERE thread = $1;

-- delete_thread_checkpoints: with the whole thread
DELETE FROM $schema.langgraph_checkpoint WHERE thread = $1;

-- delete_thread: last of all
DELETE FROM $schema.langgraph_thread WHERE no = $1;

-- copy_checkpoints: from one thread to another, as they are; what is there has been copied before
INSERT INTO $schema.langgraph_checkpoint (thread, ns, id, parent, head, type, metadata)
SELECT $2::bigint, ns, id, parent, head, type, metadata FROM $schema.langgraph_checkpoint WHERE thread = $1
ON CONFLICT DO NOTHING;

-- copy_values: the same
INSERT INTO $schema.langgraph_value (thread, no, base, depth, type, body)
SELECT $2::bigint, no, base, depth, type, body FROM $schema.langgraph_value WHERE thread = $1
ON CONFLICT DO NOTHING;

-- copy_writes: the same
INSERT INTO $schema.langgraph_write (thread, ns, checkpoint, path, task, idx, channel, type, body)
SELECT $2::bigint, ns, checkpoint, path, task, idx, channel, type, body FROM $schema.langgraph_write WHERE thread = $1
ON CONFLICT DO NOTHING;

-- Questions about the schema as a whole, for `agentos db stats` and `agentos doctor`. They only read.

-- count: how many runs a scope has, and how many events there are in all scopes
SELECT count(*) FILTER (WHERE scope = ANY ($1::bigint[])), coalesce(sum(sequence), 0)::bigint FROM $schema.run;

-- blobs: how many large outputs, and how large
SELECT count(*), coalesce(sum(size), 0)::bigint FROM $schema.blob;

-- tables: bytes of each table with its indexes, largest first
SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY 2 DESC, 1;

-- runs: what each run of a scope takes, largest first, and how many checkpoints are beyond the newest
SELECT r.id, r.name, r.sequence, (SELECT count(*) FROM $schema.checkpoint AS c WHERE c.run = r.no),
       (SELECT coalesce(sum(octet_length(e.body) + 60), 0) FROM $schema.event AS e WHERE e.run = r.no)::bigint
       + (SELECT coalesce(sum(octet_length(p.body)), 0) FROM $schema.plan AS p WHERE p.run = r.no)::bigint
       + (SELECT coalesce(sum(b.size), 0) FROM $schema.blob AS b WHERE b.run = r.no)::bigint AS bytes,
       CASE WHEN $1 = 0 THEN 0 ELSE (
           SELECT count(*) FROM $schema.checkpoint AS c WHERE c.run = r.no AND c.name = ''
           AND c.sequence < (SELECT d.sequence FROM $schema.checkpoint AS d WHERE d.run = r.no ORDER BY d.sequence DESC
                             LIMIT 1 OFFSET greatest($1, 1) - 1)
           AND c.sequence <> (SELECT coalesce(max(d.sequence), -1) FROM $schema.checkpoint AS d
                              WHERE d.run = r.no AND NOT d.abandoned)) END
FROM $schema.run AS r WHERE r.id = ANY ($2::text[]) AND r.scope = ANY ($3::bigint[]) ORDER BY bytes DESC, r.no;

-- statuses: how many runs of these scopes stand in each stored status, by an index alone
SELECT status, count(*) FROM $schema.run WHERE scope = ANY ($1::bigint[]) GROUP BY status;

-- undriven: of those that should go by now and that nobody holds, how many are in each status and queue, and when the
-- oldest began
SELECT status, kind = 'workflow', coalesce(queue, ''), count(*), min(created_at) FROM $schema.run
WHERE scope = ANY ($1::bigint[]) AND status IN ('pending', 'running', 'queued') AND holder IS NULL
AND (status <> 'queued' OR ready_at <= (extract(epoch FROM statement_timestamp()) * 1000000)::bigint) GROUP BY 1, 2, 3;

-- held: runs under way whose lease was not let go; whether it is current, and for how long it has been over
SELECT status, kind = 'workflow', coalesce(queue, ''), created_at, holder, lease_until > clock_timestamp(),
       extract(epoch FROM clock_timestamp() - lease_until)::double precision
FROM $schema.run
WHERE scope = ANY ($1::bigint[]) AND status IN ('pending', 'running', 'waiting') AND holder IS NOT NULL;

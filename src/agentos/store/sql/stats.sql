-- Questions about a database as a whole, for `agentos db stats` and `agentos doctor`. They only read.

-- count: how many runs there are, and how many events they have
SELECT count(*), coalesce(sum(sequence), 0) FROM run;

-- blobs: how many large outputs, and how large
SELECT count(*), coalesce(sum(size), 0) FROM blob;

-- tables: bytes of each table with its indexes, largest first
SELECT coalesce(s.tbl_name, d.name), sum(d.pgsize) FROM dbstat AS d LEFT JOIN sqlite_schema AS s ON s.name = d.name
GROUP BY 1 ORDER BY 2 DESC;

-- runs: what each run takes, largest first
SELECT r.no, r.id, r.name, r.sequence, (SELECT count(*) FROM checkpoint AS c WHERE c.run = r.no),
       (SELECT coalesce(sum(length(CAST(e.body AS BLOB)) + 40), 0) FROM event AS e
        WHERE e.no > r.no << 40 AND e.no < (r.no + 1) << 40)
       + (SELECT coalesce(sum(length(CAST(p.body AS BLOB))), 0) FROM plan AS p WHERE p.run = r.no)
       + (SELECT coalesce(sum(b.size), 0) FROM blob AS b
          WHERE b.digest IN (SELECT e.blob FROM event AS e
                             WHERE e.no > r.no << 40 AND e.no < (r.no + 1) << 40 AND e.blob IS NOT NULL)) AS bytes
FROM run AS r ORDER BY bytes DESC, r.no;

-- prunable: checkpoints beyond the newest, under the same conditions as prune_checkpoints
SELECT count(*) FROM checkpoint WHERE run = ?1 AND name = ''
AND sequence < (SELECT sequence FROM checkpoint WHERE run = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2 - 1)
AND sequence <> (SELECT coalesce(max(sequence), -1) FROM checkpoint WHERE run = ?1 AND NOT abandoned);

-- statuses: how many runs stand in each stored status, by an index alone
SELECT status, count(*) FROM run GROUP BY status;

-- undriven: of those that should go by now (?1) and that nobody holds, how many are in each status and queue, and when the
-- oldest began
SELECT status, kind = 'workflow', coalesce(queue, ''), count(*), min(created_at) FROM run
WHERE status IN ('pending', 'running', 'queued') AND holder IS NULL AND (status <> 'queued' OR ready_at <= ?1)
GROUP BY 1, 2, 3;

-- held: runs under way whose lease was not let go
SELECT status, kind = 'workflow', coalesce(queue, ''), created_at, holder, lease_boot, lease_expires, lease_until FROM run
WHERE status IN ('pending', 'running', 'waiting') AND holder IS NOT NULL;

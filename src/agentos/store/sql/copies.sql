-- What a copy of a database is asked before it is relied on. Only of SQLite: a server has tools of its own.

-- runs: every run, oldest first
SELECT id, status, root FROM run ORDER BY no;

-- checkpoint_snapshots: which checkpoint names which snapshot
SELECT r.id, c.id, c.snapshot FROM checkpoint AS c JOIN run AS r ON r.no = c.run
WHERE c.snapshot <> '' ORDER BY c.run, c.sequence;

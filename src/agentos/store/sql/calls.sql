-- Every statement of the book of calls. `-- name: purpose` begins one.

-- begin_numbers_at: keeps the lines of this process's own book apart from those it has in the shared one
INSERT INTO sqlite_sequence (name, seq) VALUES ('call', ?);

-- enter: waits its turn from now on
INSERT INTO call (credential, holder, seen) VALUES (?, ?, ?) RETURNING id;

-- note_start: counts against the calls of this minute
INSERT INTO start (credential, at) VALUES (?, ?);

-- see: its process lives; one that was struck out while the machine slept is back in its place
INSERT INTO call (id, credential, holder, seen, began) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET seen = excluded.seen, began = excluded.began;

-- leave: it is over, or waits no more
DELETE FROM call WHERE id = ?;

-- holders: the processes behind all calls of a credential, and when they were last heard of
SELECT id, holder, seen FROM call WHERE credential = ?;

-- under_way: calls that have begun
SELECT count(*) FROM call WHERE credential = ? AND began IS NOT NULL;

-- before: calls that wait for longer than this one
SELECT count(*) FROM call WHERE credential = ? AND began IS NULL AND id < ?;

-- starts: when the calls of the last minute began
SELECT at FROM start WHERE credential = ? AND at > ? ORDER BY at;

-- forget_starts: those that no minute looks back to; also those of a clock that was set back since
DELETE FROM start WHERE at < ? OR at > ?;

-- pause: what a credential was told to do
SELECT cool_from, cool_until, cap, cap_until FROM credential WHERE name = ?;

-- cool_down: nobody calls before then; a longer pause stays
INSERT INTO credential (name, cool_from, cool_until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET cool_from = ?2, cool_until = max(?3, iif(cool_from <= ?2, cool_until, 0));

-- cap: at most so many at once until then
INSERT INTO credential (name, cap, cap_until) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET cap = ?2, cap_until = ?3;

-- spend: adds to what was paid on a day
INSERT INTO spending (credential, day, usd) VALUES (?, ?, ?)
ON CONFLICT (credential, day) DO UPDATE SET usd = usd + excluded.usd;

-- spent: what was paid on a day
SELECT coalesce(sum(usd), 0) FROM spending WHERE credential = ? AND day = ?;

-- forget_spending: of days long past
DELETE FROM spending WHERE day < ?;

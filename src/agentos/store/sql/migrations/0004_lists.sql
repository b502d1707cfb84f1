-- What lists show, without a look at all runs and their journals.

-- Which runs have a label, newest last: the runs with a rare one are found without looking at the others.
CREATE TABLE label (
    label TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (label, created_at, run)
) WITHOUT ROWID;

CREATE INDEX label_run ON label (run);

-- The questions that runs wait with, by the events that asked them; sequence 0: the journal has to be folded to know.
CREATE TABLE question (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

-- In which statuses beside `complete` a run that has ended left tasks, or may have: the view `tasks` looks there alone.
CREATE TABLE task_left (
    run INTEGER NOT NULL,
    status TEXT NOT NULL,
    PRIMARY KEY (run, status)
) WITHOUT ROWID;

CREATE INDEX task_left_status ON task_left (status, run);

INSERT INTO label (label, created_at, run)
SELECT DISTINCT l.value, r.created_at, r.no
FROM run AS r, json_each(CASE WHEN json_valid(r.labels) THEN r.labels ELSE '[]' END) AS l
WHERE r.labels <> '[]' AND l.type = 'text';

INSERT INTO question (run, seq)
SELECT no, 0 FROM run WHERE kind = 'workflow' AND status IN ('pending', 'running', 'waiting', 'paused');

-- More than there are: which of these a run really has, the view finds out. None of a run whose tasks all began and
-- completed, as those of nearly all runs did.
INSERT INTO task_left (run, status)
SELECT r.no, s.column1
FROM run AS r, (VALUES ('pending'), ('running'), ('retrying'), ('waiting'), ('failed'), ('failed_safe'), ('skipped'),
                       ('cancelled')) AS s
WHERE r.kind = 'workflow' AND r.status IN ('complete', 'failed', 'aborted') AND (
    SELECT max(e.type IN (3, 11, 13, 14, 19, 20, 24, 26)) OR sum((e.type = 9) - (e.type = 12)) <> 0
    FROM event AS e WHERE e.no > r.no << 40 AND e.no < (r.no + 1) << 40);

-- What lists show, without a look at all runs and their journals.

-- Which runs of a scope have a label: those with a rare one are found without looking at the others.
CREATE TABLE label (
    scope bigint NOT NULL,
    label text COLLATE "C" NOT NULL,
    created_at bigint NOT NULL,
    run bigint NOT NULL,
    PRIMARY KEY (scope, label, created_at, run)
);

CREATE INDEX label_run ON label (run);

-- The questions that runs wait with, by the events that asked them; sequence 0: the journal has to be folded to know.
CREATE TABLE question (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (run, seq)
);

-- In which statuses beside `complete` a run that has ended left tasks, or may have: the view `tasks` looks there alone.
CREATE TABLE task_left (
    run bigint NOT NULL,
    status text COLLATE "C" NOT NULL,
    PRIMARY KEY (run, status)
);

CREATE INDEX task_left_status ON task_left (status, run);

INSERT INTO label (scope, label, created_at, run)
SELECT DISTINCT r.scope, l.value, r.created_at, r.no
FROM run AS r, jsonb_array_elements_text(r.labels::jsonb) AS l (value) WHERE r.labels <> '[]';

INSERT INTO question (run, seq)
SELECT no, 0 FROM run WHERE kind = 'workflow' AND status IN ('pending', 'running', 'waiting', 'paused');

-- More than there are: which of these a run really has, the view finds out. None of a run whose tasks all began and
-- completed, as those of nearly all runs did.
INSERT INTO task_left (run, status)
SELECT r.no, s.status
FROM run AS r CROSS JOIN unnest(ARRAY['pending', 'running', 'retrying', 'waiting', 'failed', 'failed_safe', 'skipped',
                                      'cancelled']) AS s (status)
WHERE r.kind = 'workflow' AND r.status IN ('complete', 'failed', 'aborted') AND (
    SELECT bool_or(e.type IN (3, 11, 13, 14, 19, 20, 24, 26))
           OR count(*) FILTER (WHERE e.type = 9) <> count(*) FILTER (WHERE e.type = 12)
    FROM event AS e WHERE e.run = r.no);

-- What LangGraph's checkpoints are kept in, made by the first saver that is opened here: a database without one has no
-- such tables, and needs no migration for them. The version of these tables is in meta, under `langgraph_schema`.

CREATE TABLE langgraph_thread (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE
);

-- `head` is the value that says what the checkpoint consists of; `metadata` and its type are the serializer's.
CREATE TABLE langgraph_checkpoint (
    thread INTEGER NOT NULL,
    ns TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT NOT NULL,
    head INTEGER NOT NULL,
    type TEXT NOT NULL,
    metadata BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID;

-- A value is whole (base 0), or the edits that make it of another one: of the one before it, or of one that lies further
-- back, from which on `depth` counts. Numbers are never used again.
CREATE TABLE langgraph_value (
    thread INTEGER NOT NULL,
    no INTEGER NOT NULL,
    base INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, no)
) WITHOUT ROWID;

-- What tasks wrote on top of a checkpoint. It may arrive before the checkpoint does.
CREATE TABLE langgraph_write (
    thread INTEGER NOT NULL,
    ns TEXT NOT NULL,
    checkpoint TEXT NOT NULL,
    path TEXT NOT NULL,
    task TEXT NOT NULL,
    idx INTEGER NOT NULL,
    channel TEXT NOT NULL,
    type TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, task, idx)
) WITHOUT ROWID;

-- What LangGraph's checkpoints are kept in, made by the first saver that is opened here: a schema without one has no such
-- tables, and needs no migration for them. The version of these tables is in meta, under `langgraph_schema`.

CREATE TABLE langgraph_thread (
    no bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    UNIQUE (scope, id)
);

-- `head` is the value that says what the checkpoint consists of; `metadata` and its type are the serializer's.
CREATE TABLE langgraph_checkpoint (
    thread bigint NOT NULL,
    ns text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    parent text COLLATE "C" NOT NULL,
    head bigint NOT NULL,
    type text NOT NULL,
    metadata bytea NOT NULL,
    PRIMARY KEY (thread, ns, id)
);

-- A value is whole (base 0), or the edits that make it of another one: of the one before it, or of one that lies further
-- back, from which on `depth` counts. Numbers are never used again.
CREATE TABLE langgraph_value (
    thread bigint NOT NULL,
    no bigint NOT NULL,
    base bigint NOT NULL,
    depth bigint NOT NULL,
    type text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread, no)
);

-- What tasks wrote on top of a checkpoint. It may arrive before the checkpoint does.
CREATE TABLE langgraph_write (
    thread bigint NOT NULL,
    ns text COLLATE "C" NOT NULL,
    checkpoint text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    idx bigint NOT NULL,
    channel text NOT NULL,
    type text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, task, idx)
);

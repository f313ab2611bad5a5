-- Who is running: one row per worker process, with an expiry that its own thread moves forward.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    worker TEXT NOT NULL,
    build TEXT NOT NULL,
    queues TEXT NOT NULL,
    handlers TEXT NOT NULL DEFAULT '[]',
    started_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    ended_at INTEGER
) STRICT, WITHOUT ROWID;

-- What authors wrote. A published document never changes.
CREATE TABLE definitions (
    name TEXT NOT NULL CHECK (length(name) > 0),
    version INTEGER NOT NULL CHECK (version > 0),
    status TEXT NOT NULL CHECK (status IN ('draft', 'published', 'deprecated')),
    hash TEXT NOT NULL,
    document BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    published_at INTEGER,
    PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER definitions_are_immutable BEFORE UPDATE OF name, version, hash, document ON definitions
WHEN old.status <> 'draft' BEGIN SELECT RAISE(ABORT, 'a published definition never changes'); END;

-- One row per execution: what lists, claims and filters need. The truth is in events.
CREATE TABLE executions (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    definition TEXT NOT NULL,
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT,
    wake_at INTEGER,
    priority INTEGER NOT NULL,
    correlation_id TEXT NOT NULL,
    target_type TEXT NOT NULL,
    target_id TEXT NOT NULL,
    key TEXT,
    concurrency_key TEXT,
    request_hash TEXT NOT NULL,
    cancel_requested INTEGER NOT NULL,
    error_class TEXT NOT NULL,
    parked TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX executions_key ON executions (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX executions_due ON executions (priority, wake_at) WHERE owner IS NULL AND wake_at IS NOT NULL;
CREATE INDEX executions_turn ON executions (tenant, priority, wake_at) WHERE owner IS NULL AND wake_at IS NOT NULL;
CREATE INDEX executions_owner ON executions (owner) WHERE owner IS NOT NULL;
CREATE INDEX executions_status ON executions (tenant, status, id);
CREATE INDEX executions_correlation ON executions (correlation_id, id) WHERE correlation_id <> '';
CREATE INDEX executions_target ON executions (tenant, target_id, id) WHERE target_id <> '';
CREATE INDEX executions_definition ON executions (tenant, definition, status, id);
CREATE INDEX executions_ended ON executions (ended_at, id) WHERE ended_at IS NOT NULL;

-- The truth: one row per decision, holding its entries. Append-only.
CREATE TABLE events (
    execution TEXT NOT NULL,
    seq INTEGER NOT NULL,
    count INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (execution, seq)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER events_are_append_only_update BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_append_only_delete BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM executions WHERE id = old.execution)
BEGIN SELECT RAISE(ABORT, 'events are append-only while their execution is kept'); END;

-- A short cut over the beginning of a long history.
CREATE TABLE snapshots (
    execution TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Facts for executions that somebody else owns, or nobody. The verdict is written with the events that follow.
CREATE TABLE mailbox (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    execution TEXT NOT NULL,
    body BLOB NOT NULL,
    received_at INTEGER NOT NULL,
    verdict BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX mailbox_unread ON mailbox (execution, received_at, id) WHERE verdict IS NULL;
CREATE INDEX mailbox_read ON mailbox (execution) WHERE verdict IS NOT NULL;

-- Attempts for the workers of a queue, each with its own lease.
CREATE TABLE tasks (
    execution TEXT NOT NULL,
    path TEXT NOT NULL,
    phase TEXT NOT NULL,
    number INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    plan TEXT NOT NULL,
    queue TEXT NOT NULL,
    handler TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    session TEXT, -- whose worker has taken it
    begun_at INTEGER, -- since when its handler may have been called
    beat_at INTEGER,
    parked TEXT NOT NULL DEFAULT '', -- why those below could not run it
    parked_by TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (execution, path, phase, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX tasks_waiting ON tasks (queue, tenant, priority DESC, created_at) WHERE session IS NULL;
CREATE INDEX tasks_session ON tasks (session) WHERE session IS NOT NULL;

-- How far a step is, as its handler said: shown, and given to its next attempt.
CREATE TABLE progress (
    execution TEXT NOT NULL,
    path TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (execution, path)
) STRICT, WITHOUT ROWID;

-- Whatever waits for a person, and how it was resolved.
CREATE TABLE reviews (
    id TEXT PRIMARY KEY,
    execution TEXT NOT NULL,
    tenant TEXT NOT NULL,
    definition TEXT NOT NULL,
    kind TEXT NOT NULL,
    path TEXT NOT NULL,
    reason TEXT NOT NULL,
    permission TEXT NOT NULL,
    error_class TEXT NOT NULL,
    error_summary TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,
    due_at INTEGER,
    resolution TEXT,
    resolved_by TEXT,
    resolved_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX reviews_open ON reviews (tenant, kind, id) WHERE resolution IS NULL;
CREATE INDEX reviews_definition ON reviews (tenant, definition, kind, id) WHERE resolution IS NULL;
CREATE INDEX reviews_class ON reviews (tenant, error_class, kind, id) WHERE resolution IS NULL AND error_class <> '';
CREATE INDEX reviews_resolved ON reviews (tenant, kind, id) WHERE resolution IS NOT NULL;
CREATE INDEX reviews_execution ON reviews (execution);

-- One active execution per concurrency key; the others wait in the order in which they asked.
CREATE TABLE admissions (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    definition TEXT NOT NULL,
    key TEXT NOT NULL,
    execution TEXT NOT NULL UNIQUE
) STRICT;

CREATE INDEX admissions_key ON admissions (tenant, definition, key, position);

-- Tenants that have a limit on executions in flight.
CREATE TABLE tenant_limits (
    tenant TEXT PRIMARY KEY,
    max_in_flight INTEGER NOT NULL CHECK (max_in_flight >= 0),
    in_flight INTEGER NOT NULL CHECK (in_flight >= 0)
) STRICT, WITHOUT ROWID;

-- Rates and concurrency shared by all workers. `spent` is what was dealt of a rate: JSON pairs of until when, how much.
CREATE TABLE limits (
    name TEXT PRIMARY KEY,
    count INTEGER CHECK (count > 0),
    period_ms INTEGER CHECK (period_ms > 0),
    concurrency INTEGER CHECK (concurrency > 0),
    spent TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What each session holds of a limit, and waits for. Its rows go when it is ended: what it held is free again.
CREATE TABLE limit_holders (
    name TEXT NOT NULL,
    session TEXT NOT NULL,
    held INTEGER NOT NULL CHECK (held >= 0),
    wanted INTEGER NOT NULL CHECK (wanted >= 0),
    asked_at INTEGER NOT NULL,
    served_at INTEGER NOT NULL,
    PRIMARY KEY (name, session)
) STRICT, WITHOUT ROWID;

CREATE INDEX limit_holders_session ON limit_holders (session);

-- Messages leave from here; a row is relayed when it is unpublished, never because its id is higher than the last.
CREATE TABLE outbox (
    execution TEXT NOT NULL,
    seq INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    published_at INTEGER,
    session TEXT, -- of the relay that has taken it
    tries INTEGER NOT NULL DEFAULT 0,
    due_at INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (execution, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_unpublished ON outbox (due_at, execution, seq) WHERE published_at IS NULL;
CREATE INDEX outbox_published ON outbox (published_at) WHERE published_at IS NOT NULL;

-- What a consumer or a handler has done already, in the caller's own transaction.
CREATE TABLE inbox (
    consumer TEXT NOT NULL,
    id TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (consumer, id)
) STRICT, WITHOUT ROWID;

CREATE INDEX inbox_age ON inbox (at) WHERE substr(consumer, 1, 7) <> 'tenuto.';

-- Executions that were removed, and whose long histories still have to be.
CREATE TABLE leftovers (
    execution TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Who is running: one row per worker process, with an expiry that its own thread moves forward.
CREATE TABLE sessions (
    id text PRIMARY KEY CHECK (length(id) > 0),
    worker text NOT NULL,
    build text NOT NULL,
    queues text NOT NULL,
    handlers text NOT NULL DEFAULT '[]',
    started_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    ended_at bigint
);

-- What authors wrote. A published document never changes.
CREATE TABLE definitions (
    name text NOT NULL CHECK (length(name) > 0),
    version integer NOT NULL CHECK (version > 0),
    status text NOT NULL CHECK (status IN ('draft', 'published', 'deprecated')),
    hash text NOT NULL,
    document bytea NOT NULL,
    created_at bigint NOT NULL,
    published_at bigint,
    PRIMARY KEY (name, version)
);

CREATE FUNCTION tenuto_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END $$;

CREATE FUNCTION tenuto_keep_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF old.status <> 'draft' AND (new.name, new.version, new.hash, new.document)
        IS DISTINCT FROM (old.name, old.version, old.hash, old.document) THEN
        RAISE EXCEPTION 'a published definition never changes';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER definitions_are_immutable BEFORE UPDATE ON definitions
FOR EACH ROW EXECUTE FUNCTION tenuto_keep_published();

-- One row per execution: what lists, claims and filters need. The truth is in events.
CREATE TABLE executions (
    -- Numbers before texts, the wide ones first: no row has gaps.
    created_at bigint NOT NULL,
    ended_at bigint,
    wake_at bigint,
    epoch integer NOT NULL,
    seq integer NOT NULL,
    run integer NOT NULL,
    version integer NOT NULL,
    priority integer NOT NULL,
    cancel_requested boolean NOT NULL,
    id text PRIMARY KEY CHECK (length(id) > 0),
    tenant text NOT NULL CHECK (length(tenant) > 0),
    definition text NOT NULL,
    status text NOT NULL,
    owner text,
    correlation_id text NOT NULL,
    target_type text NOT NULL,
    target_id text NOT NULL,
    key text,
    concurrency_key text,
    request_hash text NOT NULL,
    error_class text NOT NULL,
    parked text NOT NULL
) WITH (fillfactor = 80);

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
    seq integer NOT NULL,
    count integer NOT NULL,
    execution text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (execution, seq)
);

CREATE FUNCTION tenuto_keep_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM executions WHERE id = old.execution) THEN
        RAISE EXCEPTION 'events are append-only while their execution is kept';
    END IF;
    RETURN old;
END $$;

CREATE TRIGGER events_are_append_only BEFORE UPDATE ON events FOR EACH ROW EXECUTE FUNCTION tenuto_refuse();
CREATE TRIGGER events_are_kept BEFORE DELETE ON events FOR EACH ROW EXECUTE FUNCTION tenuto_keep_events();
CREATE TRIGGER events_are_not_truncated BEFORE TRUNCATE ON events FOR EACH STATEMENT EXECUTE FUNCTION tenuto_refuse();

-- A short cut over the beginning of a long history.
CREATE TABLE snapshots (
    execution text PRIMARY KEY,
    seq bigint NOT NULL,
    body bytea NOT NULL
);

-- Facts for executions that somebody else owns, or nobody. The verdict is written with the events that follow.
CREATE TABLE mailbox (
    id text PRIMARY KEY CHECK (length(id) > 0),
    execution text NOT NULL,
    body bytea NOT NULL,
    received_at bigint NOT NULL,
    verdict bytea
);

CREATE INDEX mailbox_unread ON mailbox (execution, received_at, id) WHERE verdict IS NULL;
CREATE INDEX mailbox_read ON mailbox (execution) WHERE verdict IS NOT NULL;

-- Attempts for the workers of a queue, each with its own lease.
CREATE TABLE tasks (
    execution text NOT NULL,
    path text NOT NULL,
    phase text NOT NULL,
    number integer NOT NULL,
    tenant text NOT NULL,
    plan text NOT NULL,
    queue text NOT NULL,
    handler text NOT NULL,
    priority integer NOT NULL,
    created_at bigint NOT NULL,
    session text, -- whose worker has taken it
    begun_at bigint, -- since when its handler may have been called
    beat_at bigint,
    parked text NOT NULL DEFAULT '', -- why those below could not run it
    parked_by text NOT NULL DEFAULT '',
    PRIMARY KEY (execution, path, phase, number)
);

CREATE INDEX tasks_waiting ON tasks (queue, tenant, priority DESC, created_at) WHERE session IS NULL;
CREATE INDEX tasks_session ON tasks (session) WHERE session IS NOT NULL;

-- How far a step is, as its handler said: shown, and given to its next attempt.
CREATE TABLE progress (
    execution text NOT NULL,
    path text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (execution, path)
);

-- Whatever waits for a person, and how it was resolved.
CREATE TABLE reviews (
    id text PRIMARY KEY,
    execution text NOT NULL,
    tenant text NOT NULL,
    definition text NOT NULL,
    kind text NOT NULL,
    path text NOT NULL,
    reason text NOT NULL,
    permission text NOT NULL,
    error_class text NOT NULL,
    error_summary text NOT NULL,
    attempts integer NOT NULL,
    opened_at bigint NOT NULL,
    due_at bigint,
    resolution text,
    resolved_by text,
    resolved_at bigint
);

CREATE INDEX reviews_open ON reviews (tenant, kind, id) WHERE resolution IS NULL;
CREATE INDEX reviews_definition ON reviews (tenant, definition, kind, id) WHERE resolution IS NULL;
CREATE INDEX reviews_class ON reviews (tenant, error_class, kind, id) WHERE resolution IS NULL AND error_class <> '';
CREATE INDEX reviews_resolved ON reviews (tenant, kind, id) WHERE resolution IS NOT NULL;
CREATE INDEX reviews_execution ON reviews (execution);

-- One active execution per concurrency key; the others wait in the order in which they asked.
CREATE TABLE admissions (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    definition text NOT NULL,
    key text NOT NULL,
    execution text NOT NULL UNIQUE
);

CREATE INDEX admissions_key ON admissions (tenant, definition, key, position);

-- Tenants that have a limit on executions in flight.
CREATE TABLE tenant_limits (
    tenant text PRIMARY KEY,
    max_in_flight integer NOT NULL CHECK (max_in_flight >= 0),
    in_flight integer NOT NULL CHECK (in_flight >= 0)
);

-- Rates and concurrency shared by all workers. `spent` is what was dealt of a rate: JSON pairs of until when, how much.
CREATE TABLE limits (
    name text PRIMARY KEY,
    count integer CHECK (count > 0),
    period_ms bigint CHECK (period_ms > 0),
    concurrency integer CHECK (concurrency > 0),
    spent text NOT NULL
);

-- What each session holds of a limit, and waits for. Its rows go when it is ended: what it held is free again.
CREATE TABLE limit_holders (
    name text NOT NULL,
    session text NOT NULL,
    held integer NOT NULL CHECK (held >= 0),
    wanted integer NOT NULL CHECK (wanted >= 0),
    asked_at bigint NOT NULL,
    served_at bigint NOT NULL,
    PRIMARY KEY (name, session)
);

CREATE INDEX limit_holders_session ON limit_holders (session);

-- Messages leave from here; a row is relayed when it is unpublished, never because its id is higher than the last.
CREATE TABLE outbox (
    execution text NOT NULL,
    seq bigint NOT NULL,
    tenant text NOT NULL,
    kind text NOT NULL,
    body bytea NOT NULL,
    created_at bigint NOT NULL,
    published_at bigint,
    session text, -- of the relay that has taken it
    tries integer NOT NULL DEFAULT 0,
    due_at bigint NOT NULL DEFAULT 0,
    error text NOT NULL DEFAULT '',
    PRIMARY KEY (execution, seq)
);

CREATE INDEX outbox_unpublished ON outbox (due_at, execution, seq) WHERE published_at IS NULL;
CREATE INDEX outbox_published ON outbox (published_at) WHERE published_at IS NOT NULL;

-- What a consumer or a handler has done already, in the caller's own transaction.
CREATE TABLE inbox (
    consumer text NOT NULL,
    id text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (consumer, id)
);

CREATE INDEX inbox_age ON inbox (at) WHERE substr(consumer, 1, 7) <> 'tenuto.';

-- Executions that were removed, and whose long histories still have to be.
CREATE TABLE leftovers (
    execution text PRIMARY KEY
);

-- The command gateway. Jobs are executions of protocols; the ledger shows them, and follows from their events.
CREATE TABLE ledger (
    execution text NOT NULL,
    key text NOT NULL, -- JOB, or STEP: and the id of a step
    tenant text NOT NULL,
    status text NOT NULL,
    protocol text NOT NULL,
    seq integer NOT NULL, -- of the last event that it shows: its version
    body blob NOT NULL,
    created_at integer,
    notify_at integer, -- when the end of the job is to be announced
    notify_tries integer NOT NULL DEFAULT 0,
    copied_seq integer NOT NULL DEFAULT 0, -- as far as another ledger has it
    PRIMARY KEY (execution, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX ledger_jobs ON ledger (tenant, status, execution) WHERE key = 'JOB';
CREATE INDEX ledger_notices ON ledger (notify_at) WHERE notify_at IS NOT NULL;
CREATE INDEX ledger_behind ON ledger (execution) WHERE copied_seq < seq;

CREATE TABLE ledger_attempts (
    execution text NOT NULL,
    step text NOT NULL,
    attempt integer NOT NULL,
    tenant text NOT NULL,
    seq integer NOT NULL,
    status text NOT NULL,
    lease_id text NOT NULL,
    lane integer NOT NULL,
    routing_key text NOT NULL,
    workspace_ref text,
    created_at integer,
    dispatched_at integer,
    acked_at integer,
    ended_at integer,
    error_class text,
    error_code text,
    copied_seq integer NOT NULL DEFAULT 0,
    PRIMARY KEY (execution, step, attempt)
) STRICT, WITHOUT ROWID;

-- Finds the job that an idempotency key created.
CREATE TABLE job_index (
    tenant text NOT NULL,
    hash text NOT NULL,
    execution text NOT NULL,
    created_at integer NOT NULL,
    copied_seq integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, hash)
) STRICT, WITHOUT ROWID;

CREATE INDEX job_index_execution ON job_index (execution);

-- Every callback that was authenticated, with its verdict. Append-only.
CREATE TABLE callbacks (
    id text PRIMARY KEY CHECK (length(id) > 0),
    execution text NOT NULL,
    tenant text NOT NULL,
    step text NOT NULL,
    kind text NOT NULL,
    attempt integer NOT NULL,
    lease_id text NOT NULL,
    status text NOT NULL,
    error_class text NOT NULL,
    error_code text NOT NULL,
    verdict text NOT NULL,
    actor text NOT NULL,
    received_at integer NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX callbacks_execution ON callbacks (execution, id);

-- The embedded bus: one row per message until its receiver has completed it.
CREATE TABLE bus_messages (
    id text PRIMARY KEY CHECK (length(id) > 0),
    execution text NOT NULL,
    tenant text NOT NULL,
    topic text NOT NULL,
    service text NOT NULL,
    priority integer NOT NULL,
    body blob NOT NULL,
    published_at integer NOT NULL,
    due_at integer NOT NULL,
    expires_at integer NOT NULL,
    lock_token text,
    locked_until integer,
    deliveries integer NOT NULL DEFAULT 0,
    dead_reason text
) STRICT, WITHOUT ROWID;

CREATE INDEX bus_messages_due ON bus_messages (service, priority DESC, due_at) WHERE dead_reason IS NULL;
CREATE INDEX bus_messages_execution ON bus_messages (execution);

-- The service that a key of a platform worker is for.
ALTER TABLE api_keys ADD COLUMN service text;

CREATE TRIGGER callbacks_are_append_only_update BEFORE UPDATE ON callbacks
BEGIN SELECT RAISE(ABORT, 'callbacks are append-only'); END;
CREATE TRIGGER callbacks_are_append_only_delete BEFORE DELETE ON callbacks
WHEN EXISTS (SELECT 1 FROM executions WHERE id = old.execution)
BEGIN SELECT RAISE(ABORT, 'callbacks are append-only while their execution is kept'); END;

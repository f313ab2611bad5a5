-- The command gateway. Jobs are executions of protocols; the ledger shows them, and follows from their events.
CREATE TABLE ledger (
    execution text NOT NULL,
    key text NOT NULL, -- JOB, or STEP: and the id of a step
    tenant text NOT NULL,
    status text NOT NULL,
    protocol text NOT NULL,
    seq integer NOT NULL, -- of the last event that it shows: its version
    body bytea NOT NULL,
    created_at bigint,
    notify_at bigint, -- when the end of the job is to be announced
    notify_tries integer NOT NULL DEFAULT 0,
    copied_seq integer NOT NULL DEFAULT 0, -- as far as another ledger has it
    PRIMARY KEY (execution, key)
);

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
    created_at bigint,
    dispatched_at bigint,
    acked_at bigint,
    ended_at bigint,
    error_class text,
    error_code text,
    copied_seq integer NOT NULL DEFAULT 0,
    PRIMARY KEY (execution, step, attempt)
);

-- Finds the job that an idempotency key created.
CREATE TABLE job_index (
    tenant text NOT NULL,
    hash text NOT NULL,
    execution text NOT NULL,
    created_at bigint NOT NULL,
    copied_seq integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, hash)
);

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
    received_at bigint NOT NULL
);

CREATE INDEX callbacks_execution ON callbacks (execution, id);

-- The embedded bus: one row per message until its receiver has completed it.
CREATE TABLE bus_messages (
    id text PRIMARY KEY CHECK (length(id) > 0),
    execution text NOT NULL,
    tenant text NOT NULL,
    topic text NOT NULL,
    service text NOT NULL,
    priority integer NOT NULL,
    body bytea NOT NULL,
    published_at bigint NOT NULL,
    due_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    lock_token text,
    locked_until bigint,
    deliveries integer NOT NULL DEFAULT 0,
    dead_reason text
);

CREATE INDEX bus_messages_due ON bus_messages (service, priority DESC, due_at) WHERE dead_reason IS NULL;
CREATE INDEX bus_messages_execution ON bus_messages (execution);

-- The service that a key of a platform worker is for.
ALTER TABLE api_keys ADD COLUMN service text;

CREATE FUNCTION tenuto_keep_callbacks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM executions WHERE id = old.execution) THEN
        RAISE EXCEPTION 'callbacks are append-only while their execution is kept';
    END IF;
    RETURN old;
END $$;

CREATE TRIGGER callbacks_are_append_only BEFORE UPDATE ON callbacks
FOR EACH ROW EXECUTE FUNCTION tenuto_refuse();
CREATE TRIGGER callbacks_are_kept BEFORE DELETE ON callbacks FOR EACH ROW EXECUTE FUNCTION tenuto_keep_callbacks();
CREATE TRIGGER callbacks_are_not_truncated BEFORE TRUNCATE ON callbacks
FOR EACH STATEMENT EXECUTE FUNCTION tenuto_refuse();

-- Requests read the rows of their own tenant only, as in the tables of the first release.
DO $$
DECLARE
    name text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tenuto_request') THEN
        RETURN;
    END IF;
    FOREACH name IN ARRAY ARRAY['ledger', 'ledger_attempts', 'job_index', 'callbacks'] LOOP
        EXECUTE format('GRANT SELECT ON %I TO tenuto_request', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY all_rows ON %I USING (true) WITH CHECK (true)', name);
        EXECUTE format('CREATE POLICY own_rows ON %I AS RESTRICTIVE TO tenuto_request USING (%s)', name,
            'tenant = current_setting(''tenuto.tenant'', true)');
    END LOOP;
END $$;

-- Runs as they were created. A run that was started has an execution with the same id; its state follows from that.
CREATE TABLE runs (
    id text PRIMARY KEY CHECK (length(id) > 0),
    tenant text NOT NULL CHECK (length(tenant) > 0),
    definition text NOT NULL,
    version integer NOT NULL,
    name text NOT NULL,
    input bytea NOT NULL,
    priority text NOT NULL,
    max_tokens bigint NOT NULL,
    max_attempts integer NOT NULL,
    estimate bigint NOT NULL CHECK (estimate >= 0),
    hold bigint NOT NULL CHECK (hold >= 0), -- what each attempt reserves; 0 while credits are off
    key text,
    request_hash text NOT NULL,
    created_by text NOT NULL,
    created_at bigint NOT NULL,
    started_at bigint,
    cancelled_at bigint,
    deleted_at bigint
);

CREATE UNIQUE INDEX runs_key ON runs (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, id);

-- The credits of an organisation, in millionths. Available is the balance without what open attempts of runs hold.
CREATE TABLE credit_accounts (
    tenant text PRIMARY KEY CHECK (length(tenant) > 0),
    balance bigint NOT NULL CHECK (balance >= 0),
    held bigint NOT NULL CHECK (held >= 0 AND held <= balance)
);

-- What the attempts of runs that ended change of an account, until the next reserve applies it.
CREATE TABLE credit_changes (
    tenant text NOT NULL,
    balance bigint NOT NULL,
    held bigint NOT NULL
);

CREATE INDEX credit_changes_tenant ON credit_changes (tenant);

-- Every movement of credits. Rows are written with what they tell of, and numbered and chained within a second.
CREATE TABLE credit_ledger (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL CHECK (length(tenant) > 0),
    execution text NOT NULL,
    attempt integer NOT NULL,
    step text NOT NULL,
    step_attempt integer NOT NULL,
    failed boolean NOT NULL,
    type text NOT NULL CHECK (type IN ('topup', 'reserve', 'charge', 'refund', 'adjust')),
    amount bigint NOT NULL CHECK (amount > 0),
    direction text NOT NULL CHECK (direction IN ('', 'credit', 'debit')),
    reverses bigint NOT NULL,
    key text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    created_at bigint NOT NULL,
    n bigint,
    available_after bigint CHECK (available_after >= 0),
    hash text
);

CREATE UNIQUE INDEX credit_ledger_key ON credit_ledger (tenant, key);
CREATE UNIQUE INDEX credit_ledger_chain ON credit_ledger (tenant, n) WHERE n IS NOT NULL;
CREATE INDEX credit_ledger_unnumbered ON credit_ledger (position) WHERE n IS NULL;
CREATE INDEX credit_ledger_run ON credit_ledger (execution, n) WHERE execution <> '';
CREATE UNIQUE INDEX credit_ledger_reversed ON credit_ledger (tenant, reverses) WHERE reverses > 0;

CREATE TABLE credit_ledger_head (
    tenant text PRIMARY KEY,
    n bigint NOT NULL,
    available bigint NOT NULL,
    hash text NOT NULL
);

ALTER TABLE credit_changes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE FUNCTION tenuto_keep_credit_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF old.n IS NOT NULL OR
        (new.tenant, new.execution, new.attempt, new.step, new.step_attempt, new.failed, new.type, new.amount,
            new.direction, new.reverses, new.key, new.actor, new.reason, new.created_at) IS DISTINCT FROM
        (old.tenant, old.execution, old.attempt, old.step, old.step_attempt, old.failed, old.type, old.amount,
            old.direction, old.reverses, old.key, old.actor, old.reason, old.created_at) THEN
        RAISE EXCEPTION 'the ledger of credits is append-only';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER credit_ledger_is_numbered_once BEFORE UPDATE ON credit_ledger
FOR EACH ROW EXECUTE FUNCTION tenuto_keep_credit_ledger();
CREATE TRIGGER credit_ledger_is_kept BEFORE DELETE ON credit_ledger FOR EACH ROW EXECUTE FUNCTION tenuto_refuse();
CREATE TRIGGER credit_ledger_is_not_truncated BEFORE TRUNCATE ON credit_ledger FOR EACH STATEMENT EXECUTE FUNCTION tenuto_refuse();

DO $$
DECLARE
    name text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tenuto_request') THEN
        RETURN;
    END IF;
    FOREACH name IN ARRAY ARRAY['runs', 'credit_accounts', 'credit_changes', 'credit_ledger'] LOOP
        EXECUTE format('GRANT SELECT ON %I TO tenuto_request', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY all_rows ON %I USING (true) WITH CHECK (true)', name);
        EXECUTE format(
            'CREATE POLICY own_rows ON %I AS RESTRICTIVE TO tenuto_request USING (%s)',
            name, 'tenant = current_setting(''tenuto.tenant'', true)');
    END LOOP;
END $$;

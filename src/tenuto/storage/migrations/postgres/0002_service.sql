-- Who may call. The secret itself is nowhere: its SHA-256 is.
CREATE TABLE api_keys (
    id text PRIMARY KEY CHECK (length(id) > 0),
    tenant text NOT NULL CHECK (length(tenant) > 0),
    name text NOT NULL,
    roles text NOT NULL,
    secret_hash text NOT NULL,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    last_used_at bigint
);

CREATE INDEX api_keys_tenant ON api_keys (tenant, id);

-- What somebody did. Rows are written with what they tell of; a sequencer numbers and chains them within a second.
CREATE TABLE audit (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL CHECK (length(tenant) > 0),
    at bigint NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    object_type text NOT NULL,
    object_id text NOT NULL,
    reason text NOT NULL,
    n bigint,
    hash text
);

CREATE UNIQUE INDEX audit_chain ON audit (tenant, n) WHERE n IS NOT NULL;
CREATE INDEX audit_unchained ON audit (position) WHERE n IS NULL;
CREATE INDEX audit_object ON audit (tenant, object_id, n);

CREATE TABLE audit_head (
    tenant text PRIMARY KEY,
    n bigint NOT NULL,
    hash text NOT NULL
);

CREATE FUNCTION tenuto_keep_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF old.n IS NOT NULL OR
        (new.tenant, new.at, new.actor, new.action, new.object_type, new.object_id, new.reason) IS DISTINCT FROM
        (old.tenant, old.at, old.actor, old.action, old.object_type, old.object_id, old.reason) THEN
        RAISE EXCEPTION 'audit is append-only';
    END IF;
    RETURN new;
END $$;

CREATE TRIGGER audit_is_numbered_once BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION tenuto_keep_audit();
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION tenuto_refuse();
CREATE TRIGGER audit_is_not_truncated BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION tenuto_refuse();

-- What was answered to requests with an idempotency key. Without a status, the request is under way.
CREATE TABLE answers (
    tenant text NOT NULL,
    endpoint text NOT NULL,
    key text NOT NULL,
    request_hash text NOT NULL,
    status integer,
    body bytea,
    created_at bigint NOT NULL,
    PRIMARY KEY (tenant, endpoint, key)
);

CREATE INDEX answers_age ON answers (created_at);

-- What one person asked for and a second one has yet to confirm.
CREATE TABLE confirmations (
    tenant text NOT NULL,
    digest text NOT NULL,
    actor text NOT NULL,
    at bigint NOT NULL,
    PRIMARY KEY (tenant, digest)
);

-- Notifications: one row for each, under its step's key, begun before it is sent and finished afterwards.
CREATE TABLE sent_notifications (
    key text PRIMARY KEY CHECK (length(key) > 0),
    tenant text NOT NULL,
    execution text NOT NULL,
    path text NOT NULL,
    channel text NOT NULL,
    begun_at bigint NOT NULL,
    sent_at bigint,
    receipt bytea
);

CREATE INDEX sent_notifications_execution ON sent_notifications (execution);

-- The second wall. Requests read as a role that sees one tenant's rows; whoever commits and sweeps is not held by it.
-- Where the role may not be made, requests read as the engine does, and the first wall (the queries) stands alone.
DO $$
BEGIN
    CREATE ROLE tenuto_request NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN
    NULL;
END $$;

DO $$
DECLARE
    name text;
    own text;
    can boolean;
    how text;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tenuto_request') THEN
        RETURN;
    END IF;
    -- Since 16, to be a member of a role does not mean that one may become it, and whoever makes one may not, at first.
    IF current_setting('server_version_num')::integer < 160000 THEN
        can := pg_has_role(current_user, 'tenuto_request', 'MEMBER');
        how := '';
    ELSE
        can := pg_has_role(current_user, 'tenuto_request', 'SET');
        how := ' WITH INHERIT FALSE, SET TRUE';
    END IF;
    IF NOT can THEN
        BEGIN
            EXECUTE format('GRANT tenuto_request TO %I%s', current_user, how);
        EXCEPTION WHEN insufficient_privilege THEN
            NULL; -- it was made for another database, by somebody else: `tenuto doctor` says what to do
        END;
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO tenuto_request', current_schema());
    FOREACH name IN ARRAY ARRAY['executions', 'events', 'snapshots', 'reviews', 'audit'] LOOP
        own := CASE WHEN name IN ('events', 'snapshots')
            THEN format('EXISTS (SELECT 1 FROM executions e WHERE e.id = %I.execution)', name)
            ELSE 'tenant = current_setting(''tenuto.tenant'', true)' END;
        EXECUTE format('GRANT SELECT ON %I TO tenuto_request', name);
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY all_rows ON %I USING (true) WITH CHECK (true)', name);
        EXECUTE format('CREATE POLICY own_rows ON %I AS RESTRICTIVE TO tenuto_request USING (%s)', name, own);
    END LOOP;
END $$;

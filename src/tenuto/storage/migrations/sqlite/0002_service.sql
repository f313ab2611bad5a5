-- Who may call. The secret itself is nowhere: its SHA-256 is.
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    last_used_at INTEGER
) STRICT;

CREATE INDEX api_keys_tenant ON api_keys (tenant, id);

-- What somebody did. Rows are written with what they tell of; a sequencer numbers and chains them within a second.
CREATE TABLE audit (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    object_type TEXT NOT NULL,
    object_id TEXT NOT NULL,
    reason TEXT NOT NULL,
    n INTEGER,
    hash TEXT
) STRICT;

CREATE UNIQUE INDEX audit_chain ON audit (tenant, n) WHERE n IS NOT NULL;
CREATE INDEX audit_unchained ON audit (position) WHERE n IS NULL;
CREATE INDEX audit_object ON audit (tenant, object_id, n);

CREATE TABLE audit_head (
    tenant TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    hash TEXT NOT NULL
) STRICT;

-- Protection against accidents: whoever can write the file can drop a trigger.
CREATE TRIGGER audit_is_numbered_once BEFORE UPDATE ON audit
WHEN old.n IS NOT NULL OR (new.tenant, new.at, new.actor, new.action, new.object_type, new.object_id, new.reason)
    IS NOT (old.tenant, old.at, old.actor, old.action, old.object_type, old.object_id, old.reason)
BEGIN
    SELECT RAISE(ABORT, 'audit is append-only');
END;

CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'audit is append-only');
END;

-- What was answered to requests with an idempotency key. Without a status, the request is under way.
CREATE TABLE answers (
    tenant TEXT NOT NULL,
    endpoint TEXT NOT NULL,
    key TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    status INTEGER,
    body BLOB,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (tenant, endpoint, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX answers_age ON answers (created_at);

-- What one person asked for and a second one has yet to confirm.
CREATE TABLE confirmations (
    tenant TEXT NOT NULL,
    digest TEXT NOT NULL,
    actor TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) STRICT, WITHOUT ROWID;

-- Notifications: one row for each, under its step's key, begun before it is sent and finished afterwards.
CREATE TABLE sent_notifications (
    key TEXT PRIMARY KEY CHECK (length(key) > 0),
    tenant TEXT NOT NULL,
    execution TEXT NOT NULL,
    path TEXT NOT NULL,
    channel TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    sent_at INTEGER,
    receipt BLOB
) STRICT, WITHOUT ROWID;

CREATE INDEX sent_notifications_execution ON sent_notifications (execution);

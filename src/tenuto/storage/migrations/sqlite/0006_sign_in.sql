-- Sign-in sessions of the console. The token is in the browser's cookie; only its SHA-256 is stored. A session that was
-- opened with an API key has the roles of that key, and ends with it.
CREATE TABLE signin_sessions (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    actor TEXT NOT NULL,
    roles TEXT NOT NULL,
    key TEXT,
    token_hash TEXT NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER NOT NULL,
    idle_ms INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX signin_sessions_tenant ON signin_sessions (tenant, id);
CREATE INDEX signin_sessions_expiry ON signin_sessions (expires_at);

-- Sign-in links that were not used yet: each opens one session.
CREATE TABLE signin_links (
    token_hash TEXT PRIMARY KEY,
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    actor TEXT NOT NULL,
    roles TEXT NOT NULL,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

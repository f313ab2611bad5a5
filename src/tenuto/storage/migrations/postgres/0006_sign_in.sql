-- Sign-in sessions of the console. The token is in the browser's cookie; only its SHA-256 is stored. A session that was
-- opened with an API key has the roles of that key, and ends with it.
CREATE TABLE signin_sessions (
    id text PRIMARY KEY CHECK (length(id) > 0),
    tenant text NOT NULL CHECK (length(tenant) > 0),
    actor text NOT NULL,
    roles text NOT NULL,
    key text,
    token_hash text NOT NULL UNIQUE,
    created_at bigint NOT NULL,
    last_used_at bigint NOT NULL,
    idle_ms bigint NOT NULL,
    expires_at bigint NOT NULL
);

CREATE INDEX signin_sessions_tenant ON signin_sessions (tenant, id);
CREATE INDEX signin_sessions_expiry ON signin_sessions (expires_at);

-- Sign-in links that were not used yet: each opens one session.
CREATE TABLE signin_links (
    token_hash text PRIMARY KEY,
    tenant text NOT NULL CHECK (length(tenant) > 0),
    actor text NOT NULL,
    roles text NOT NULL,
    expires_at bigint NOT NULL
);

-- Runs as they were created. A run that was started has an execution with the same id; its state follows from that.
CREATE TABLE runs (
    id TEXT PRIMARY KEY CHECK (length(id) > 0),
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    definition TEXT NOT NULL,
    version INTEGER NOT NULL,
    name TEXT NOT NULL,
    input BLOB NOT NULL,
    priority TEXT NOT NULL,
    max_tokens INTEGER NOT NULL,
    max_attempts INTEGER NOT NULL,
    estimate INTEGER NOT NULL CHECK (estimate >= 0),
    hold INTEGER NOT NULL CHECK (hold >= 0), -- what each attempt reserves; 0 while credits are off
    key TEXT,
    request_hash TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    cancelled_at INTEGER,
    deleted_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX runs_key ON runs (tenant, key) WHERE key IS NOT NULL;
CREATE INDEX runs_tenant ON runs (tenant, id);

-- The credits of an organisation, in millionths. Available is the balance without what open attempts of runs hold.
CREATE TABLE credit_accounts (
    tenant TEXT PRIMARY KEY CHECK (length(tenant) > 0),
    balance INTEGER NOT NULL CHECK (balance >= 0),
    held INTEGER NOT NULL CHECK (held >= 0 AND held <= balance)
) STRICT, WITHOUT ROWID;

-- What the attempts of runs that ended change of an account, until the next reserve applies it. On SQLite, at once.
CREATE TABLE credit_changes (
    tenant TEXT NOT NULL,
    balance INTEGER NOT NULL,
    held INTEGER NOT NULL
) STRICT;

CREATE INDEX credit_changes_tenant ON credit_changes (tenant);

-- Every movement of credits. Rows are written with what they tell of, and numbered and chained within a second.
CREATE TABLE credit_ledger (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL CHECK (length(tenant) > 0),
    execution TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    step TEXT NOT NULL,
    step_attempt INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    type TEXT NOT NULL CHECK (type IN ('topup', 'reserve', 'charge', 'refund', 'adjust')),
    amount INTEGER NOT NULL CHECK (amount > 0),
    direction TEXT NOT NULL CHECK (direction IN ('', 'credit', 'debit')),
    reverses INTEGER NOT NULL,
    key TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    n INTEGER,
    available_after INTEGER CHECK (available_after >= 0),
    hash TEXT
) STRICT;

CREATE UNIQUE INDEX credit_ledger_key ON credit_ledger (tenant, key);
CREATE UNIQUE INDEX credit_ledger_chain ON credit_ledger (tenant, n) WHERE n IS NOT NULL;
CREATE INDEX credit_ledger_unnumbered ON credit_ledger (position) WHERE n IS NULL;
CREATE INDEX credit_ledger_run ON credit_ledger (execution, n) WHERE execution <> '';
CREATE UNIQUE INDEX credit_ledger_reversed ON credit_ledger (tenant, reverses) WHERE reverses > 0;

CREATE TABLE credit_ledger_head (
    tenant TEXT PRIMARY KEY,
    n INTEGER NOT NULL,
    available INTEGER NOT NULL,
    hash TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TRIGGER credit_ledger_is_numbered_once BEFORE UPDATE ON credit_ledger
WHEN old.n IS NOT NULL
    OR (new.tenant, new.execution, new.attempt, new.step, new.step_attempt, new.failed, new.type, new.amount)
    IS NOT (old.tenant, old.execution, old.attempt, old.step, old.step_attempt, old.failed, old.type, old.amount)
    OR (new.direction, new.reverses, new.key, new.actor, new.reason, new.created_at)
    IS NOT (old.direction, old.reverses, old.key, old.actor, old.reason, old.created_at)
BEGIN SELECT RAISE(ABORT, 'the ledger of credits is append-only'); END;

CREATE TRIGGER credit_ledger_is_kept BEFORE DELETE ON credit_ledger
BEGIN SELECT RAISE(ABORT, 'the ledger of credits is append-only'); END;

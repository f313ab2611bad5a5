-- Who did what, found by either: without these, a filter that fits few rows walks a tenant's whole chain. Rows come into
-- them when they are numbered, not in the commit that writes them.
CREATE INDEX audit_action ON audit (tenant, action, n) WHERE n IS NOT NULL;
CREATE INDEX audit_actor ON audit (tenant, actor, n) WHERE n IS NOT NULL;

-- What was decided, found by what it was about, as what is open can be.
CREATE INDEX reviews_resolved_definition ON reviews (tenant, definition, kind, id) WHERE resolution IS NOT NULL;
CREATE INDEX reviews_resolved_class ON reviews (tenant, error_class, kind, id)
    WHERE resolution IS NOT NULL AND error_class <> '';

-- What is due, by what it needs to run: a worker finds its own without passing over what it cannot run.
DROP INDEX executions_due;
CREATE INDEX executions_due ON executions (definition, version, priority, wake_at)
    WHERE owner IS NULL AND wake_at IS NOT NULL;
DROP INDEX executions_turn;
CREATE INDEX executions_turn ON executions (tenant, definition, version, priority, wake_at)
    WHERE owner IS NULL AND wake_at IS NOT NULL;

-- How often a task was taken: what is said about an earlier taking changes nothing.
ALTER TABLE tasks ADD COLUMN takings INTEGER NOT NULL DEFAULT 0;

-- What is not in the count of a tenant's row yet. Here nobody waits for a row, and it is counted at once: there is none.
CREATE TABLE tenant_changes (
    tenant TEXT NOT NULL,
    change INTEGER NOT NULL
);

-- What the step is called to people: a clone by its label, which is not in its path.
ALTER TABLE reviews ADD COLUMN step TEXT NOT NULL DEFAULT '';

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

-- Rows that change with every step, or live for moments: dead ones are cleared away by their number, not when they are a
-- fifth of a table that has grown large.
ALTER TABLE executions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);
ALTER TABLE mailbox SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE tasks SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE progress SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000);
ALTER TABLE sessions SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
ALTER TABLE tenant_limits SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
ALTER TABLE limit_holders SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE admissions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- How often a task was taken: what is said about an earlier taking changes nothing.
ALTER TABLE tasks ADD COLUMN takings integer NOT NULL DEFAULT 0;

-- What ended, or began another run, in tenants that have a limit, and is not in the count of its row yet: whoever ends
-- something waits for nobody who starts something, and for nobody else who ends something. Who starts something counts it.
CREATE TABLE tenant_changes (
    tenant text NOT NULL,
    change integer NOT NULL
);
CREATE INDEX tenant_changes_tenant ON tenant_changes (tenant);
ALTER TABLE tenant_changes SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What the step is called to people: a clone by its label, which is not in its path.
ALTER TABLE reviews ADD COLUMN step text NOT NULL DEFAULT '';

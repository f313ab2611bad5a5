-- Status changes of executions, one row for each commit: the feed reads them in the order of their positions. They are
-- deleted after some minutes. A reader that fell further behind starts over from the lists.
CREATE TABLE status_changes (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    changes text NOT NULL
);
ALTER TABLE status_changes SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000);

-- What waits for a decision, the soonest due first; what is never due comes last.
CREATE INDEX reviews_due ON reviews (tenant, coalesce(due_at, 9223372036854775807), id)
    WHERE resolution IS NULL AND kind <> 'dead_letter';

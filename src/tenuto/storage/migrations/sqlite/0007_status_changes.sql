-- Status changes of executions, one row for each commit: the feed reads them in the order of their positions. They are
-- deleted after some minutes. A reader that fell further behind starts over from the lists.
CREATE TABLE status_changes (
    position INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    changes TEXT NOT NULL
) STRICT;

-- What waits for a decision, the soonest due first; what is never due comes last.
CREATE INDEX reviews_due ON reviews (tenant, coalesce(due_at, 9223372036854775807), id)
    WHERE resolution IS NULL AND kind <> 'dead_letter';

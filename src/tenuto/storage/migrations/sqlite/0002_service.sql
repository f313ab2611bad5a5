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

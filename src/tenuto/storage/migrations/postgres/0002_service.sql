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

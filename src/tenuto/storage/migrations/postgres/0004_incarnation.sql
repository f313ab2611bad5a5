-- Which life of the database this is. Whoever restores an older backup raises the number (`tenuto restored`): sessions
-- that were opened under another one are over.
CREATE TABLE incarnation (
    id integer PRIMARY KEY CHECK (id = 1),
    number bigint NOT NULL
);
INSERT INTO incarnation (id, number) VALUES (1, 0);
ALTER TABLE sessions ADD COLUMN incarnation bigint NOT NULL DEFAULT 0;

-- How often a session was renewed. A worker that knows of more renewals than its row has lives in a database that was
-- set back.
ALTER TABLE sessions ADD COLUMN renewals bigint NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN renewed_at bigint NOT NULL DEFAULT 0;

-- The JSON Schemas of a saga's input, derived from its code. They are no part of the published document: a process that
-- registers the code replaces them.
ALTER TABLE definitions ADD COLUMN input_schemas bytea;
ALTER TABLE definitions ADD COLUMN input_schemas_hash text;

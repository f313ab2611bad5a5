"""PostgreSQL itself takes transactions back, as it does with those that deadlock or cannot be put in order.

Triggers raise what the server raises then, 40001 and 40P01, at statements of every kind and at the commit of what is
written. Sequences count it, because they are not taken back with the rest.
"""

from collections import Counter

import psycopg

_AFTER = "CREATE TRIGGER conflict AFTER {} FOR EACH STATEMENT"
_AT_COMMIT = "CREATE CONSTRAINT TRIGGER late_conflict AFTER {} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
AT = {
    "events": _AFTER.format("INSERT ON events"),
    "COMMIT": _AT_COMMIT.format("INSERT ON events"),
    "claims and releases": _AFTER.format("UPDATE ON executions"),
    "posts": _AFTER.format("INSERT ON mailbox"),
    "tasks": _AFTER.format("INSERT OR UPDATE OR DELETE ON tasks"),
}
STATES = ("40001", "40P01")
SHARE = 0.08

_TABLE = "CREATE TABLE conflicts (share DOUBLE PRECISION NOT NULL)"
_RAISING = """
CREATE FUNCTION conflict_{number}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF random() < (SELECT share FROM conflicts) THEN
        IF random() < 0.5 THEN
            PERFORM nextval('conflicts_{number}_40001');
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
        END IF;
        PERFORM nextval('conflicts_{number}_40p01');
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END IF;
    RETURN NULL;
END $$;
{trigger} EXECUTE FUNCTION conflict_{number}();
"""


class Conflicts:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(_TABLE)
        self._connection.execute("INSERT INTO conflicts VALUES (0)")
        for number, trigger in enumerate(AT.values()):
            for state in STATES:
                self._connection.execute(f"CREATE SEQUENCE conflicts_{number}_{state.lower()}".encode())
            self._connection.execute(_RAISING.format(number=number, trigger=trigger).encode())

    def begin(self) -> None:
        self._connection.execute("UPDATE conflicts SET share = %s", (SHARE,))

    def end(self) -> None:
        """From now on nothing is taken back. What was is counted, by where it was and how."""
        self._connection.execute("UPDATE conflicts SET share = 0")

    def counts(self) -> Counter[str]:
        query = "SELECT sequencename, coalesce(last_value, 0) FROM pg_sequences WHERE sequencename LIKE 'conflicts_%'"
        return Counter({self._name(str(name)): int(last) for name, last in self._connection.execute(query)})

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _name(sequence: str) -> str:
        _, number, state = sequence.split("_")
        return f"{state.upper()} at {list(AT)[int(number)]}"

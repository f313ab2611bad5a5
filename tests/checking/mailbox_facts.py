"""Whatever is decided can have come by mail: the checker's rules for mail hold of every fact, whoever brought it."""

import msgspec

from tenuto.checker.mail import Traces, opened
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_answer, encode_fact
from tenuto.kernel.decide import Decision
from tenuto.storage.shared.records import MailRow


class Mailed:
    """Follows one execution, with a letter for each fact."""

    def __init__(self) -> None:
        self._traces = Traces()
        self._letters = 0

    def rewind(self, history: list[e.Entry]) -> None:
        """What was decided since then was not recorded."""
        self._traces = Traces()
        for entry in history:
            self._traces.note(entry, entry.seq)

    def decided(self, execution: str, fact: f.Fact, decision: Decision) -> None:
        self._letters += 1
        id = f"m{self._letters}"
        for entry in decision.entries:
            own = msgspec.structs.replace(entry, cause=id) if entry.cause == fact.cause else entry
            self._traces.note(own, decision.entries[0].seq)
        row = MailRow(
            id=id,
            execution=execution,
            received_at=fact.at,
            body=encode_fact(fact),
            verdict=encode_answer(decision.answer),
        )
        self._traces.is_told(opened(row))

"""What the command gateway stores: its ledger, the log of callbacks, and the messages of the embedded bus."""

from .bus_messages import BusMessages
from .callbacks import CallbackLog
from .ledger.sql import SqlLedger
from .statements import Statements


class JobStore:
    """Written once for both dialects. The rows of a decision are written with it (`storage.shared.rows`)."""

    def __init__(self, statements: Statements, *, skip_locked: bool) -> None:
        self.ledger = SqlLedger(statements)
        self.callbacks = CallbackLog(statements)
        self.messages = BusMessages(statements, skip_locked=skip_locked)

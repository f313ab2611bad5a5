"""Decodes mailbox messages: which attempt a callback is about, and what it caused."""

import msgspec
from msgspec import Struct

from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, decode_fact
from tenuto.storage.shared.records import MailRow


class CallbackRow(Struct, frozen=True, kw_only=True):
    """A callback. `path`, `phase`, `number` and `lease` identify its attempt, if it has one."""

    id: str
    execution: str
    kind: str
    path: str | None
    phase: str | None
    number: int | None
    lease: str | None
    received_at: int
    verdict: str


def callback(mail: MailRow) -> CallbackRow | None:
    """Decodes a message; None if it cannot be decoded."""
    try:
        fact = decode_fact(mail.body)
        verdict = "unread" if mail.verdict is None else _verdict(decode_answer(mail.verdict))
    except msgspec.DecodeError:
        return None
    refs = getattr(fact, "refs", None)
    ref: Ref | None = getattr(fact, "ref", refs[0] if refs else None)
    own = None if ref is None else lease_id(mail.execution, ref)
    return CallbackRow(
        id=mail.id,
        execution=mail.execution,
        kind=type(fact).__name__.lower(),
        path=None if ref is None else ref.path,
        phase=None if ref is None else ref.phase,
        number=None if ref is None else ref.number,
        lease=getattr(fact, "lease", None) or own,
        received_at=mail.received_at,
        verdict=verdict,
    )


def _verdict(answer: f.Answer) -> str:
    match answer:
        case f.Ignored(why=why):
            return why
        case f.Refused(code=code):
            return f"refused: {code}"
    return "applied"

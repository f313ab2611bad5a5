"""Who may decide: every resolution of every review, in every state, with a timer due or not, by every sender."""

from itertools import product
from typing import Any, NamedTuple, get_args

import pytest

from tenuto.kernel import facts as f
from tenuto.kernel.address import review_id
from tenuto.kernel.codec import decode_fact
from tenuto.kernel.definition import Escalation
from tenuto.kernel.events import Resolution, ReviewKind

from .build import approval, pause_for, step, unsafe
from .driver import EXECUTION, Driver, given
from .rendering import START

RESOLUTIONS: tuple[Resolution, ...] = get_args(Resolution)
OWN = "invoices:approve"
STARTER, OTHER = "user:ann", "user:bob"


class Sender(NamedTuple):
    """Who decides, with what. `permissions` of None are all; `stated` is False for facts of earlier releases."""

    actor: str | None
    permissions: tuple[str, ...] | None = ()
    four_eyes: bool = False
    stated: bool = True

    @property
    def authority(self) -> f.Authority | None:
        return f.Authority(permissions=self.permissions, four_eyes=self.four_eyes) if self.stated else None

    def may(self, *required: str) -> bool:
        held = self.permissions if self.stated else ("approvals:write",)
        return held is None or set(required) <= set(held)

    @property
    def is_one_of_four_eyes(self) -> bool:
        return self.actor == STARTER and (self.four_eyes or not self.stated)


SENDERS = {
    "nobody": Sender(OTHER),
    "approver": Sender(OTHER, ("approvals:write",)),
    "approver with the permission": Sender(OTHER, ("approvals:write", OWN)),
    "holder of the permission alone": Sender(OTHER, (OWN,)),
    "operator": Sender(OTHER, ("dlq:write", "executions:write")),
    "approver who may repeat effects": Sender(OTHER, ("approvals:write", "effects:again", OWN)),
    "admin": Sender(OTHER, None),
    "admin who started it": Sender(STARTER, None),
    "admin who started it, four eyes": Sender(STARTER, None, four_eyes=True),
    "another admin, four eyes": Sender(OTHER, None, four_eyes=True),
    "embedding program": Sender(None, None),
    "earlier release": Sender(OTHER, stated=False),
    "earlier release, who started it": Sender(STARTER, stated=False),
    "earlier release, embedding program": Sender(None, stated=False),
}


def approvals() -> Driver:
    return given(pause_for("w", 1_000), approval("gate", permission=OWN, timeout_ms=1_000, set_variable="v"))


def decide(run: Driver, sender: Sender, resolution: Resolution, *, at: int | None = None, **named: Any) -> f.Answer:
    fact = f.Decide(
        at=run.now if at is None else at,
        actor=sender.actor,
        resolution=resolution,
        authority=sender.authority,
        **named,
    )
    return run.tell(fact)


def code_of(answer: f.Answer) -> str:
    return answer.code if isinstance(answer, f.Refused) else "applied"


def denial(sender: Sender, *required: str) -> str | None:
    if not sender.may(*required):
        return "forbidden"
    return "four_eyes" if sender.is_one_of_four_eyes else None


# -- An approval, at every moment of its life --------------------------------------------------------------------------

GATE = review_id(EXECUTION, 4)  # started, waiting, waited, review


def before(run: Driver) -> None:
    """The wait before it is not over."""


def opens(run: Driver) -> None:
    """The wait is over, and nobody has noticed: the decision itself opens the review."""
    run.now = START + 1_000


def opened(run: Driver) -> None:
    run.tick_to(1_000)


def expires(run: Driver) -> None:
    """Its time is over, and nobody has noticed."""
    run.tick_to(1_000)
    run.now = START + 2_000


def expired(run: Driver) -> None:
    run.tick_to(1_000)
    run.tick_to(2_000)


def decided(run: Driver) -> None:
    run.tick_to(1_000)
    run.approve("gate")


def canceled(run: Driver) -> None:
    run.tick_to(1_000)
    run.cancel("drain")


def paused(run: Driver) -> None:
    run.tick_to(1_000)
    run.pause()


MOMENTS = {
    before: False, opens: True, opened: True, expires: False, expired: False, decided: False, canceled: False,
    paused: True,
}  # fmt: skip


@pytest.mark.parametrize("sender", SENDERS.values(), ids=list(SENDERS))
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_decision_counts_only_if_its_review_is_open_and_allows_it(moment: Any, sender: Sender) -> None:
    named: tuple[dict[str, Any], ...] = ({"review": GATE}, {"path": "gate"})
    for resolution, name in product(RESOLUTIONS, named):
        run = approvals()
        run.start(actor=STARTER)
        moment(run)
        answer = decide(run, sender, resolution, **name)

        if not MOMENTS[moment]:
            expected = "not_waiting"
        elif (denied := denial(sender, "approvals:write", OWN)) is not None:
            expected = denied
        else:
            fits = ("approved", "rejected", "completed", "not_completed")
            expected = "applied" if resolution in fits else "bad_resolution"
        assert code_of(answer) == expected, (resolution, name)
        decisions = [entry for entry in run.history if entry.actor == sender.actor and "resolved" in repr(entry.event)]
        if moment in (before, opens, opened, paused) and expected != "applied" and sender.actor is not None:
            assert not decisions
            assert "v" not in run.state.variables


def test_a_decision_that_came_before_its_review_was_due_does_not_wait_for_it() -> None:
    run = approvals()
    run.start(actor=STARTER)
    run.now = START + 1_000
    answer = decide(run, SENDERS["admin"], "approved", at=START + 999, review=GATE)
    assert code_of(answer) == "not_waiting"
    assert run.reviews() == ["approval gate"]


# -- Every kind of review ----------------------------------------------------------------------------------------------


def _approval() -> Driver:
    run = given(approval("x"))
    run.start(actor=STARTER)
    return run


def _approval_with_permission() -> Driver:
    run = given(approval("x", permission=OWN))
    run.start(actor=STARTER)
    return run


def _compensation() -> Driver:
    run = given(unsafe("x", undo=True))
    run.start(actor=STARTER)
    run.begin("x")
    run.fail("x", "COMPENSATION_REQUIRED")
    return run


def _compensation_with_permission() -> Driver:
    run = given(unsafe("x", undo=True, permission=OWN))
    run.start(actor=STARTER)
    run.begin("x")
    run.fail("x", "COMPENSATION_REQUIRED")
    return run


def _indeterminate() -> Driver:
    run = given(unsafe("x", undo=True))
    run.start(actor=STARTER)
    run.begin("x")
    run.time_out("x")
    return run


def _safe_compensation() -> Driver:
    run = given(step("x", undo=True))
    run.start(actor=STARTER)
    run.fail("x", "COMPENSATION_REQUIRED")
    return run


def _compensation_failed() -> Driver:
    run = given(step("x", undo=True), step("z"))
    run.start(actor=STARTER)
    run.succeed("x")
    run.fail("z")
    run.undo_fails("x")
    return run


def _escalation() -> Driver:
    run = given(step("x", tries=9, delay=0), escalation=Escalation(errors=1))
    run.start(actor=STARTER)
    run.fail("x", "TRANSIENT")
    run.fail("x", "TRANSIENT")
    return run


def _dead_letter() -> Driver:
    run = given(step("x"))
    run.start(actor=STARTER)
    run.fail("x")
    return run


# The kind, whether the author asks for a permission, and whether the step is not safe to retry.
KINDS: dict[Any, tuple[ReviewKind, bool, bool]] = {
    _approval: ("approval", False, False),
    _approval_with_permission: ("approval", True, False),
    _compensation: ("compensation", False, True),
    _compensation_with_permission: ("compensation", True, True),
    _safe_compensation: ("compensation", False, False),
    _indeterminate: ("indeterminate", False, True),
    _compensation_failed: ("compensation_failed", False, False),
    _escalation: ("escalation", False, False),
    _dead_letter: ("dead_letter", False, False),
}


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__.strip("_"))
def test_every_kind_of_review_names_who_may_decide_it(make: Any) -> None:
    kind, has_permission, is_unsafe = KINDS[make]
    for sender, resolution, again in product(SENDERS.values(), RESOLUTIONS, (False, True)):
        run = make()
        (review,) = run.state.reviews.values()
        assert (review.kind, bool(review.permission)) == (kind, has_permission)
        required = ["dlq:write" if kind == "dead_letter" else "approvals:write"]
        required += [OWN] if has_permission else []
        required += ["effects:again"] if again or (is_unsafe and resolution == "retry") else []
        answer = decide(run, sender, resolution, review=review.id, again=again)

        denied = denial(sender, *required)
        if denied is not None:
            assert code_of(answer) == denied, (sender, resolution, again)
            assert list(run.state.reviews) == [review.id]
        else:
            assert code_of(answer) in ("applied", "bad_resolution"), (sender, resolution, again)


def test_every_kind_of_review_is_enumerated() -> None:
    assert {kind for kind, *_ in KINDS.values()} == set(get_args(ReviewKind))


def test_a_stored_decision_of_an_earlier_release_is_read_and_says_nothing_of_permissions() -> None:
    fact = decode_fact(b'{"type":"Decide","at":1,"actor":"user:bob","resolution":"approved","path":"gate"}')
    assert fact == f.Decide(at=1, actor="user:bob", resolution="approved", path="gate", authority=None)


def test_the_refusal_of_an_earlier_releases_decision_says_so() -> None:
    for sender in ("earlier release", "earlier release, who started it"):
        run = _approval_with_permission() if sender == "earlier release" else _approval()
        answer = decide(run, SENDERS[sender], "approved", path="x")
        assert isinstance(answer, f.Refused)
        assert "earlier release" in answer.hint


# -- Retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("run_checked", "expected"), [(0, "applied"), (1, "invalid_transition"), (2, "applied")])
def test_a_retry_is_of_the_run_that_was_checked(run_checked: int, expected: str) -> None:
    """Another one may have failed since, at a step that is not safe to retry."""
    run = given(step("a"), unsafe("pay"))
    run.start()
    run.fail("a")
    run.retry()
    run.succeed("a")
    run.begin("pay")
    run.fail("pay")
    assert (run.status, run.state.run) == ("failed", 2)
    assert code_of(run.tell(f.Retry(at=run.now, reason="mended", run=run_checked))) == expected

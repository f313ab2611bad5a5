"""Operators, approvers and senders of signals: hasty while the world is hostile, helpful when it is quiet."""

from random import Random
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from tenuto.kernel import facts as f
from tenuto.kernel.address import PHASES, Ref, lease_id
from tenuto.kernel.decide.people import RESOLUTIONS
from tenuto.kernel.events import Resolution
from tenuto.kernel.state import Execution, Review

if TYPE_CHECKING:
    from .world import World

ANY_RESOLUTION: tuple[Resolution, ...] = (
    "approved",
    "rejected",
    "completed",
    "not_completed",
    "retry",
    "compensate",
    "dismiss",
)


class People:
    def __init__(self, world: "World", rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.signals = 0
        self.sent: list[f.Signal] = []
        self.decided: list[f.Decide] = []
        actions = ("pause", "resume", "cancel", "signal", "review", "retry", "repeat", "intrude")
        weights = {name: rng.choice((0, 1, 3)) for name in actions}
        weights["cancel"] = rng.choice((0, 0, 1, 2))
        if "rollback" in world.program.features:
            weights["cancel"], weights["review"] = 0, max(weights["review"], 2)
        if "approvals" in world.program.features:
            weights["review"] = max(weights["review"], 2)
        if world.program.signals:
            weights["signal"] = max(weights["signal"], 1)
        weights["resume"] = max(weights["pause"] * 2, weights["resume"])
        self.actions = [name for name, weight in weights.items() for _ in range(weight)] or ["review"]
        self.pace = rng.choice((50, 300, 1_500))
        self.hasty = rng.choice((0.2, 1.0))
        manners = Random(f"people {world.seed}")
        self.thorough = manners.random() < (0.8 if "rollback" in world.program.features else 0.2)

    # -- Hostile -------------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One thing, then another a while later, as long as the world is hostile."""
        if not self.world.hostile:
            return
        self.world.after(self.rng.randint(1, self.pace * 2), self.act)
        self._do(self.rng.choice(self.actions), self.world.seen())

    def _do(self, action: str, state: Execution) -> None:
        now = self.world.clock()
        match action:
            case "pause":
                self._command(f.Pause(at=now, actor="op", reason="because"))
            case "resume":
                self._command(f.Resume(at=now, actor="op"))
            case "cancel":
                mode = self.rng.choice((None, "drain", "terminate", "terminate", "compensate"))
                self._command(f.Cancel(at=now, actor="op", mode=mode, reason="because"))  # type: ignore[arg-type]
            case "signal":
                self.signal(self.rng.choice(self.world.program.signals or ("noise",)))
            case "review":
                self._decide_something(state)
            case "retry":
                self._retry(state)
            case "repeat":
                self._repeat()
            case "intrude":
                self.world.mail(self._nonsense(state))

    def _command(self, fact: f.Fact) -> None:
        self.world.command(fact)

    def signal(self, name: str) -> None:
        self.signals += 1
        payload = Raw(msgspec.json.encode({"ok": True, "n": self.signals}))
        fact = f.Signal(at=self.world.clock(), name=name, id=f"signal-{self.signals}", payload=payload)
        self.sent.append(fact)
        self.world.mail(fact)

    def _repeat(self) -> None:
        """Somebody's message comes twice."""
        again: list[f.Signal | f.Decide | f.Reported] = [
            *self.sent[-3:],
            *self.decided[-2:],
            *self.world.outside.answered[-3:],
        ]
        if again:
            fact: f.Signal | f.Decide | f.Reported = self.rng.choice(again)
            self.world.sometimes("signal doubled", isinstance(fact, f.Signal))
            self.world.mail(msgspec.structs.replace(fact, at=self.world.clock()))

    def _nonsense(self, state: Execution) -> f.Fact:
        """A well-formed message about an attempt that was never granted."""
        now = self.world.clock()
        path = self.rng.choice(["nowhere", "nowhere#7", "", *(f"{path}#99" for path in state.nodes), *state.nodes])
        phase = self.rng.choice(PHASES)
        ref = Ref(path, phase, self.rng.choice((1, 77)))
        if any(ref == known for known in state.agenda) or self.world.was_granted(ref):
            ref = Ref(path, phase, 10_000)
        self.world.sometimes("message about an attempt that never was")
        failed = f.Failed(error_class="TRANSIENT", code="nonsense")
        return self.rng.choice(
            (
                f.Reported(at=now, ref=ref, outcome=f.Succeeded()),
                f.Reported(at=now, ref=ref, outcome=f.NotDone()),
                f.Reported(at=now, ref=ref, outcome=failed, lease="forged"),
                f.Acked(at=now, ref=ref, lease=lease_id(state.id, ref)),
                f.Dispatched(at=now, ref=ref),
                f.DispatchRefused(at=now, ref=ref, failure=failed),
                f.Begun(at=now, ref=ref, worker="nobody"),
                f.Returned(at=now, refs=(ref,)),
                f.Decide(at=now, resolution="approved", path=path),
                f.Admitted(at=now, key="another") if state.admitted else f.HoldRefused(at=now),
                f.HoldGranted(at=now, amount=1) if not state.retry_hold else f.Tick(at=now),
            )
        )

    def _decide_something(self, state: Execution) -> None:
        reviews = list(state.reviews.values())
        if not reviews:
            return
        if self.thorough and len(reviews) > 1:
            self._decide_everything(reviews)
            return
        review = self.rng.choice(reviews)
        resolution = self.rng.choice(ANY_RESOLUTION)
        if self.rng.random() < self.hasty:
            resolution = self.rng.choice(list(RESOLUTIONS[review.kind]))
        again = self.rng.random() < 0.4
        due = state.timers.get(("review", review.id))
        if due is not None and self.rng.random() < 0.6:  # at the last moment, or just after it
            delay = due - self.world.clock() + self.rng.choice((-20, -1, 0, 1))
            self.world.after(delay, lambda: self.decide(review, resolution, again=again))
        else:
            self.decide(review, resolution, again=again)

    def _decide_everything(self, reviews: list[Review], patience: int = 1) -> None:
        """Goes through the whole list, in any order; often with one word for all that it fits."""
        word = self.rng.choice((None, "retry", "retry", "retry", "completed"))
        for review in self.rng.sample(reviews, len(reviews)):
            sensible = self._sensible(review, patience)
            fits = word in RESOLUTIONS[review.kind] and (patience > 0 or word != "retry")
            self.decide(review, word if fits else sensible)  # type: ignore[arg-type]  # the kind has the word

    def decide(self, review: Review, resolution: Resolution, *, again: bool = False) -> None:
        by_path = review.kind == "approval" and self.rng.random() < 0.5
        fact = f.Decide(
            at=self.world.clock(),
            actor="someone",
            resolution=resolution,
            review=None if by_path else review.id,
            path=review.path if by_path else None,
            again=again,
            authority=f.Authority(permissions=None),
        )
        self.decided.append(fact)
        self.world.mail(fact)

    def _retry(self, state: Execution) -> None:
        if state.finished is None and self.rng.random() < 0.9:
            return
        steps = [node.id for node in state.plan.root.walk() if node.id]
        start = self.rng.choice([None, None, *steps, "nowhere"])
        self._command(
            f.Retry(
                at=self.world.clock(),
                actor="op",
                reason="once more",
                start=start,
                again=start is not None and self.rng.random() < 0.5,
                admitted=state.concurrency_key is None or self.rng.random() < 0.5,
                hold=self.world.program.hold,
            )
        )

    # -- Helpful -------------------------------------------------------------------------------------------------------

    def help(self, state: Execution, patience: int) -> bool:
        """Does what the execution waits for. False when it waits for nobody."""
        if state.finished is not None:
            return False
        if state.pause is not None:
            self._command(f.Resume(at=self.world.clock(), actor="op"))
            return True
        for name in list(state.waits):
            self.signal(name)
            return True
        reviews = [review for review in state.reviews.values() if review.kind not in ("dead_letter", "escalation")]
        if self.thorough:
            self._decide_everything(reviews, patience)
        elif reviews:
            self.decide(reviews[0], self._sensible(reviews[0], patience))
        return bool(reviews)

    def _sensible(self, review: Review, patience: int) -> Resolution:
        options = [name for name in RESOLUTIONS[review.kind] if patience > 0 or name not in ("retry", "compensate")]
        if patience <= 0 and review.kind == "indeterminate":
            options = ["completed", "dismiss"]
        return self.rng.choice(options)

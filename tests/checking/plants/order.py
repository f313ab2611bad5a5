"""What waits for what, how scopes end, and how many run at once."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.definition import Node
from tenuto.kernel.events import Grant
from tests.checking.streams import driven, edit_entries, moved, numbered, placed, rewritten
from tests.kernel.build import approval, scope, step, wait_for
from tests.kernel.driver import Driver, given

from .planting import fanned_out, replace, retried, second_round, two_steps, violates


def _gathered() -> Driver:
    """A scope of two steps that run together, and one step after it."""
    run = given(scope("s", step("a"), step("b"), mode="parallel"), step("z"))
    run.start()
    run.succeed("s/a", "s/b", "z")
    assert run.status == "succeeded"
    return run


@violates("G5")
def _() -> list[Struct]:
    """The scope closes, and one of its attempts answers later."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        second = [entry for entry in entries if isinstance(entry.event, e.AttemptSucceeded)][1]
        entries.remove(second)
        closed = next(n for n, entry in enumerate(entries) if isinstance(entry.event, e.ScopeClosed))
        return [*entries[: closed + 1], replace(second, grants=()), *entries[closed + 1 :]]

    return rewritten(_gathered(), edit)


@violates("G5")
def _() -> list[Struct]:
    """One of its steps never ran."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        kept = [replace(x, grants=tuple(grant for grant in x.grants if grant.path != "s/b")) for x in entries]
        return [x for x in kept if getattr(x.event, "path", "") != "s/b"]

    return rewritten(_gathered(), edit)


@violates("G5")
def _() -> list[Struct]:
    """A clone of a fan-out never ran."""
    run = fanned_out()
    run.succeed("n#0", "n#1")
    assert run.status == "succeeded"

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        kept = [replace(x, grants=(Grant("n#0", "forward", 1),)) if x.grants else x for x in entries]
        return [x for x in kept if getattr(x.event, "path", "") != "n#1"]

    return rewritten(run, edit)


@violates("G5")
def _() -> list[Struct]:
    """Done, and a step still waits for its next attempt."""
    run = retried()
    run.succeed("a")

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        started, failed, *_, finished = entries
        return numbered([started, failed, finished])

    return edit_entries(driven(run), edit)


def _flow() -> Driver:
    """Two steps, one after the other."""
    run = given(step("a", on_success="b", on_failure="c"), step("b"), step("c"), mode="flow")
    run.start()
    run.succeed("a@1")
    return run


@violates("G5")
def _() -> list[Struct]:
    """A flow ends well in the middle of its way."""
    run = _flow()
    run.succeed("b@1")

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        start, first, _, finished = entries
        return [start, replace(first, grants=()), finished]

    return rewritten(run, edit)


def _in_turn(second: Node) -> Driver:
    """A step, and what depends on it."""
    run = given(step("a"), second, mode="dag")
    run.start()
    run.succeed("a")
    return run


@violates("G8")
def _() -> list[Struct]:
    return moved(_in_turn(approval("ok", depends_on=("a",))), e.ReviewOpened, e.AttemptSucceeded)


@violates("G8")
def _() -> list[Struct]:
    return moved(_in_turn(wait_for("w", "go", depends_on=("a",))), e.WaitOpened, e.AttemptSucceeded)


@violates("G8")
def _() -> list[Struct]:
    return moved(_in_turn(step("n", foreach="[1, 2]", after=("a",))), e.Expanded, e.AttemptSucceeded)


@violates("G8")
def _() -> list[Struct]:
    """Passed over before what it depends on has run."""
    run = _in_turn(step("n", when="false", after=("a",)))
    return moved(run, e.NodesClosed, e.AttemptSucceeded)


@violates("G8")
def _() -> list[Struct]:
    """In the second round a step starts together with the one before it: both had run in the first."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        *before, last = entries
        return [*before, replace(last, grants=(Grant("s/a", "forward", 2), Grant("s/b", "forward", 2)))]

    return rewritten(second_round(), edit)


@violates("G8")
def _() -> list[Struct]:
    """In the second run."""
    run = given(step("a"), step("b"), step("c"))
    run.start()
    run.succeed("a")
    run.fail("b", "NON_RETRYABLE")
    run.retry()
    grants = (Grant("b", "forward", 2), Grant("c", "forward", 1))
    return rewritten(run, lambda entries: [*entries[:-1], replace(entries[-1], grants=grants)])


@violates("G8")
def _() -> list[Struct]:
    grants = (Grant("b", "forward", 1), Grant("a", "forward", 2))
    return placed(driven(two_steps()), e.AttemptSucceeded, grants=grants)


@violates("G8")
def _() -> list[Struct]:
    """Two at once in a flow."""
    return placed(driven(_flow()), e.AttemptSucceeded, grants=(Grant("b@1", "forward", 1), Grant("c@1", "forward", 1)))


@violates("G8")
def _() -> list[Struct]:
    """Not where the flow leads."""
    return placed(driven(_flow()), e.AttemptSucceeded, grants=(Grant("c@1", "forward", 1),))


@violates("G8")
def _() -> list[Struct]:
    return placed(driven(fanned_out(at_once=1)), e.Expanded, grants=(Grant("n", "forward", 1, 0, 1),))

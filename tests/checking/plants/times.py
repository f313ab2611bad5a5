"""Time: it goes on, and nothing is over before its time."""

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.definition import Node
from tests.checking.streams import altered, at_once, driven, rewritten
from tests.kernel.build import callback, pause_for, scope, step, wait_for
from tests.kernel.driver import Driver, given

from .planting import replace, unsafe_begun, violates


@violates("V4")
def _() -> list[Struct]:
    run = given(pause_for("w", 60_000), step("b"))
    run.start()
    run.tick()
    return at_once(run)


def _overdue(node: Node, timeout_ms: int | None = None) -> Driver:
    """Nobody did anything until something was due."""
    run = given(node, timeout_ms=timeout_ms)
    run.start()
    run.tick()
    return run


@violates("V4")
def _() -> list[Struct]:
    """A step has less than its time."""
    return at_once(_overdue(step("a", timeout=5_000, timeout_ms=5_000)))


@violates("V4")
def _() -> list[Struct]:
    return at_once(_overdue(wait_for("w", "go", timeout_ms=5_000)))


@violates("V4")
def _() -> list[Struct]:
    return at_once(_overdue(scope("s", step("a"), timeout_ms=5_000)))


@violates("V4")
def _() -> list[Struct]:
    return at_once(_overdue(step("a"), timeout_ms=5_000))


@violates("V4")
def _() -> list[Struct]:
    run = given(step("a"), pending_timeout_ms=5_000)
    run.start(owned=False)
    run.tick()
    return at_once(run)


@violates("V4")
def _() -> list[Struct]:
    """Nobody has acknowledged it, and there was time."""
    run = given(callback("a"))
    run.start()
    run.dispatch("a")
    run.tick()
    return at_once(run)


@violates("V4")
def _() -> list[Struct]:
    run = given(callback("a"))
    run.start()
    run.dispatch("a")
    run.ack("a")
    run.tick()
    return at_once(run)


@violates("V4")
def _() -> list[Struct]:
    """What became of it could still be found out."""
    run = unsafe_begun()
    run.crash()
    run.tick()
    run.tick()
    assert run.status == "waiting_approval"
    return at_once(run)


def _paused() -> Driver:
    run = given(step("a", timeout=5_000, timeout_ms=5_000))
    run.start()
    run.pause()
    run.tick_to(3_000)
    run.resume()
    run.tick()
    return run


@violates("V4")
def _() -> list[Struct]:
    """A pause has taken of its time."""

    def edit(entries: list[e.Entry]) -> list[e.Entry]:
        late = 3_000
        return [x if isinstance(x.event, e.ExecutionStarted | e.Paused | e.Resumed) else replace(x, at=x.at - late)
                for x in entries]  # fmt: skip

    return rewritten(_paused(), edit)


@violates("V4")
def _() -> list[Struct]:
    """More time than the pause has taken is given back."""
    return altered(driven(_paused()), e.Resumed, shift=4_000)

"""What workers of queues say about their tasks, heard late: at the worst moment, if it comes soon.

A word about a taking is carried out after its sender gave it up, said it again and went on: the task is in its hands
for another time by then, or the next attempt of the step is under way.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tenuto.storage.tasks import Answered, Taking

from .faults import unreachable
from .loop import pause
from .store import Part

if TYPE_CHECKING:
    from .simulated import SimulatedStore

LOOKS = 200
LOOK_SECONDS = 0.05
OFTEN = 10  # times as often as anything else is applied late
ASTRAY = 4  # times as often as other answers, those to whoever takes tasks are lost: so they are given back

_HAS_AGAIN = """
SELECT 1 FROM tasks WHERE execution = ? AND path = ? AND phase = ? AND number = ? AND takings > ? AND session = ?
    AND begun_at IS NOT NULL"""
_GOES_ON = """
SELECT 1 FROM progress WHERE execution = ? AND path = ? AND CAST(body AS TEXT) ->> 'attempt' > ?"""

# How far an attempt is, is not told by an earlier one when a later has told it: whatever would do that is kept.
WATCH = """
CREATE TABLE told_late (execution TEXT, path TEXT, body TEXT);
CREATE TRIGGER watch_progress BEFORE INSERT ON progress WHEN EXISTS (
    SELECT 1 FROM progress p WHERE p.execution = NEW.execution AND p.path = NEW.path
    AND CAST(p.body AS TEXT) ->> 'attempt' > CAST(NEW.body AS TEXT) ->> 'attempt')
BEGIN
    INSERT INTO told_late VALUES (NEW.execution, NEW.path, CAST(NEW.body AS TEXT));
END"""


class Words(Part):
    """Tasks, as a store of the latest worlds has them."""

    def __init__(self, tasks: Any, store: "SimulatedStore") -> None:
        super().__init__(tasks, store)
        self._tasks = tasks
        self._world = store.world

    async def take(self, *given: Any) -> Any:
        taken = await self._store.call("take", lambda: self._tasks.take(*given))
        if taken and self._world.happens(ASTRAY * self._world.rates.applied_but_error):
            raise unreachable()
        return taken

    async def give_back(self, session: str, takings: Sequence[Taking], why: str = "") -> None:
        asked = [(*key, number, session) for key, number in takings]
        await self._say(
            "give_back",
            lambda: self._tasks.give_back(session, takings, why),
            lambda: self._is(_HAS_AGAIN, asked),
            "task given back, late, that is taken again",
        )

    async def answer(self, session: str, answers: Sequence[Answered]) -> set[str | None]:
        asked = [(key.execution, key.path, key.number) for key, _ in (each.taking for each in answers)]
        owners: set[str | None] = await self._say(
            "answer",
            lambda: self._tasks.answer(session, answers),
            lambda: self._is(_GOES_ON, asked),
            "answer heard late, when the next attempt is under way",
        )
        return owners

    async def beat(self, session: str, progress: Mapping[Taking, bytes]) -> None:
        asked = [(key.execution, key.path, key.number) for key, _ in progress]
        await self._say(
            "beat",
            lambda: self._tasks.beat(session, progress),
            lambda: self._is(_GOES_ON, asked),
            "progress told late, when the next attempt is under way",
        )

    async def _say(
        self, name: str, call: Callable[[], Awaitable[Any]], is_worst: Callable[[], bool], situation: str
    ) -> Any:
        world = self._world
        if not world.happens(OFTEN * world.rates.applied_late):
            return await self._store.call(name, call)

        async def late() -> object:
            for _ in range(LOOKS):
                if is_worst():
                    world.sometimes(situation)
                    break
                await pause(LOOK_SECONDS)
            return await call()

        world.sometimes("applied after the error")
        world.later(world.between(1, 400) / 1_000, late)
        raise unreachable()

    def _is(self, query: str, asked: list[tuple[Any, ...]]) -> bool:
        return any(self._world.reader().execute(query, each).fetchone() for each in asked)

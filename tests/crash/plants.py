"""Bugs to be found: each changes the engine of the processes of one run, as a mistake in it would."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tenuto.kernel.decide import ending
from tenuto.kernel.decide.attempts import losses
from tenuto.runtime.durable import committer
from tenuto.runtime.durable.claimer import Claimer
from tenuto.runtime.executor import attempt
from tenuto.storage.port import Committed
from tenuto.storage.pruning import Pruning
from tenuto.storage.sqlite.database import SqliteDatabase

Change = Callable[[], None]


class Plant(NamedTuple):
    """`scenario`: which must find it."""

    scenario: str
    change: Change
    on_postgres: bool


PLANTS: dict[str, Plant] = {}
"""By what is wrong."""


def plant(name: str, scenario: str, *, on_postgres: bool = False) -> Callable[[Change], None]:
    def register(change: Change) -> None:
        PLANTS[name] = Plant(scenario, change, on_postgres)

    return register


@plant("a payment begins before that is recorded", "paid once")
def _() -> None:
    vars(attempt)["needs_begin"] = lambda node, ref: False


@plant("after a takeover what was under way simply runs again", "three in a row")
def _() -> None:
    vars(losses)["needs_begin"] = lambda node, ref: True


@plant("earlier undos do not wait for those that are tried again", "two undos of a group tried again")
def _() -> None:
    vars(ending)["_tried_again"] = lambda undo: False


@plant("what was decided acts before it is committed", "refused at once")
def _() -> None:
    async def hasty(self: committer.Committer, writes: Any) -> None:
        self._settle_all(writes, Committed(0))
        self._tell(len(self._committed))
        await self._store.commit(committer._batch(self._session, writes))

    type.__setattr__(committer.Committer, "_commit", hasty)


@plant("what is claimed first is not taken into hand", "signal")
def _() -> None:
    adopt = Claimer._adopt
    claimed: list[Any] = []

    async def forgetful(self: Claimer, claim: Any, *given: Any) -> None:
        claimed.append(claim)
        if len(claimed) > 1:
            await adopt(self, claim, *given)

    type.__setattr__(Claimer, "_adopt", forgetful)


@plant("what belongs together is written one by one", "a definition's life")
def _() -> None:
    async def apart(self: SqliteDatabase, statements: Any) -> bool:
        first, *rest = statements
        found = await self.run(*first)
        for statement in rest if found else ():
            await self.run(*statement)
        return bool(found)

    type.__setattr__(SqliteDatabase, "run_all", apart)


@plant("an execution is removed before its history is noted to be", "pruned in pieces", on_postgres=True)
def _() -> None:
    async def apart(self: Pruning, id: str) -> int:
        await self._sql.run("DELETE FROM executions WHERE id = $1 RETURNING id", (id,))
        await self._sql.run("INSERT INTO leftovers (execution) VALUES ($1)", (id,))
        await self._clear(id)
        return 1

    type.__setattr__(Pruning, "_remove_long", apart)

"""One program on every runtime, and whether its histories are the same."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

from tests.checking.soundness import assert_sound
from tests.servers.databases import database
from tests.servers.postgres import Server

from .histories import normalised
from .play import Player
from .programs import draw


@contextmanager
def places(server: Server) -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as directory, database(server) as postgres:
        yield {"memory": "memory://", "sqlite": f"sqlite:///{directory}/x.db", "postgres": postgres}


async def compare(seed: int, urls: dict[str, str]) -> int:
    """How many entries the history has, if it is one."""
    histories: dict[str, list[str]] = {}
    moves: dict[str, list[str]] = {}
    for name, url in urls.items():
        played = await Player(draw(seed), url).play()
        histories[name], moves[name] = normalised(played), played.moves
        if name != "memory":
            await assert_sound(url)
    first, *others = histories
    for other in others:
        _assert_same(seed, first, histories[first], other, histories[other])
        assert moves[first] == moves[other]
    return len(histories[first])


def _assert_same(seed: int, one: str, first: list[str], two: str, second: list[str]) -> None:
    for line, other in zip_longest(first, second):
        assert line == other, f"program {seed} differs:\n  {one}: {line}\n  {two}: {other}"

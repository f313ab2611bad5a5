"""`python -m tests.differential`: many programs, each in memory, on SQLite and on PostgreSQL."""

import argparse
import asyncio
import sys
import time

from tests.servers.postgres import Server, running

from .compare import compare, places

DEFAULT_PROGRAMS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=DEFAULT_PROGRAMS, help="how many (default %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="the first one's number")
    options = parser.parse_args()
    with running() as server:
        return asyncio.run(_many(server, options.start, options.programs))


async def _many(server: Server, start: int, count: int) -> int:
    began = time.monotonic()
    entries = differing = 0
    for seed in range(start, start + count):
        try:
            with places(server) as urls:
                entries += await compare(seed, urls)
        except AssertionError as error:
            differing += 1
            say(str(error))
    seconds = time.monotonic() - began
    say(f"{count} programs, {entries} entries each in three runtimes, in {seconds:.0f} s; {differing} differ")
    return 1 if differing else 0


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""A process of its own that sends one parcel, and prints its news as lines of JSON for the process that started it.

Run twice it is still one parcel: the second run finds the execution by its key, and takes it over if nobody has it.
"""

import argparse
import asyncio

from tenuto import Engine

from .news import News, Reporter
from .sagas import Parcel


async def main(url: str, lease: str, pace: float, *, doomed: bool) -> None:
    async with Engine(url, lease=lease, events=[Reporter(_tell)]) as engine:
        engine.register(Parcel(pace, doomed=doomed))
        await engine.execute(Parcel, "a tea pot", idempotency_key="parcel-7", correlation_id="parcel")


def _tell(news: News) -> None:
    print(news.to_line(), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--lease", required=True)
    parser.add_argument("--pace", type=float, required=True)
    parser.add_argument("--doomed", action="store_true")
    given = parser.parse_args()
    asyncio.run(main(given.url, given.lease, given.pace, doomed=given.doomed))

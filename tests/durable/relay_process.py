"""A relay that is killed. Each message is a line of LOG, in one write.

python -m tests.durable.relay_process URL LOG
"""

import asyncio
import json
import os
import sys

from tenuto import Engine, Message


async def main(url: str, log: str) -> None:
    async def publish(message: Message) -> None:
        await asyncio.to_thread(note, message)

    def note(message: Message) -> None:
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, (json.dumps([message.execution_id, message.seq]) + "\n").encode())
        os.fsync(handle)
        os.close(handle)

    async with Engine(url, worker=False, publish=publish):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

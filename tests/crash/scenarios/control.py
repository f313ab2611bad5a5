"""What operators do: pause, cancel in each mode, retry; keys, and many at a time."""

from tenuto.kernel.definition import CancelMode
from tests.crash.client import Client
from tests.crash.scenario import Script, scenario, task, unsafe


async def pause_and_resume(client: Client) -> None:
    handle = await client.start()
    await client.until_began("a")
    await client.command(handle.pause(reason="lunch"))
    await client.until(handle, lambda found: found["status"] == "paused")
    await client.command(handle.resume())
    await client.finish(handle)


scenario("paused", task("a", "transient", "ok"), task("b"), task("c"), script=pause_and_resume)


def _cancel(mode: CancelMode) -> Script:
    async def script(client: Client) -> None:
        handle = await client.start()
        await client.until_began("b")
        await client.command(handle.cancel(mode))
        await client.finish(handle)

    return script


MODES: tuple[CancelMode, ...] = ("drain", "compensate", "terminate")

for mode in MODES:
    # An attempt that is lost under a cancel is not made again, and may have had its effect: its undo goes by the key.
    scenario(
        f"cancel {mode}",
        task("a", undo="ok"),
        task("b", "hangs", "ok", timeout=300, undo="ok", partial_effect=True),
        task("c"),
        script=_cancel(mode),
        ends="canceled succeeded",
        lost=mode != "compensate",
    )

scenario(
    "cancel under a payment",
    task("a", undo="ok"),
    unsafe("b", "made hangs", undo="ok", timeout=60),
    task("c"),
    script=_cancel("compensate"),
    ends="canceled succeeded",
)


async def _cancel_twice(client: Client) -> None:
    handle = await client.start()
    await client.until_began("b")
    await client.command(handle.cancel("drain"))
    await client.command(handle.cancel("terminate"))
    await client.finish(handle)


scenario(
    "cancel drain, then terminate",
    task("a", undo="ok"),
    task("b", "hangs", "ok", timeout=5_000, undo="ok", partial_effect=True),
    task("c"),
    script=_cancel_twice,
    ends="canceled succeeded",
    lost=True,
)


def _in_mid_rollback(*verbs: str) -> Script:
    async def script(client: Client) -> None:
        handle = await client.start()
        await client.until(handle, lambda _: client.world.lines("undoing"))
        for verb in verbs:
            await client.command(getattr(handle, verb)())
        await client.finish(handle)

    return script


for name, verbs in (("paused", ("pause", "resume")), ("cancelled", ("cancel",))):
    scenario(
        f"{name} in mid-rollback",
        task("a", undo="ok"),
        task("b", undo=["transient", "transient", "ok"]),
        task("c", "refused"),
        script=_in_mid_rollback(*verbs),
        ends="failed canceled",
        compensation="RETRY_WITH_BACKOFF",
    )


async def _retry(client: Client) -> None:
    handle = await client.start()
    if (await handle.result()).status == "failed":
        await client.command(handle.retry(reason="once more"))
    await client.finish(handle)


scenario(
    "new run after a rollback",
    task("a", undo="ok"),
    task("b", "refused", "ok"),
    script=_retry,
    ends="succeeded",
)
scenario("new run goes on", task("a"), task("b", "refused", "ok"), task("c"), script=_retry, ends="succeeded")
scenario(
    "new run keeps what was paid",
    unsafe("pay", timeout=200),
    task("b", "refused", "ok"),
    script=_retry,
    ends="succeeded",
)


async def _retry_from(client: Client) -> None:
    handle = await client.start()
    if (await handle.result()).status == "failed":
        await client.command(handle.retry(from_step="a", reason="from the beginning"))
    await client.finish(handle)


scenario(
    "new run from an earlier step",
    task("a", undo="ok"),
    task("b"),
    task("c", "refused", "ok"),
    script=_retry_from,
    ends="succeeded",
)


async def _in_line(client: Client) -> None:
    handles = [await client.start(f"k{n}", concurrency_key="one") for n in range(3)]
    await client.finish(*handles)


scenario("one at a time", task("a"), task("b", "transient", "ok"), script=_in_line)


async def _leave_the_line(client: Client) -> None:
    handles = [await client.start(f"k{n}", concurrency_key="one") for n in range(3)]
    await client.command(handles[1].cancel("drain"))
    await client.finish(*handles)


scenario(
    "cancelled in line",
    task("a", "transient", "ok"),
    task("b"),
    script=_leave_the_line,
    ends="succeeded canceled",
)


async def _many(client: Client) -> None:
    handles = [await client.start(f"k{n}") for n in range(6)]
    await client.finish(*handles)


scenario("many", task("a", undo="ok"), task("b", "transient", "ok"), unsafe("pay", timeout=200), script=_many)


async def _twice(client: Client) -> None:
    first = await client.start("same")
    second = await client.start("same")
    assert first.id == second.id
    await client.finish(first)


scenario("started twice", task("a"), task("b"), script=_twice)

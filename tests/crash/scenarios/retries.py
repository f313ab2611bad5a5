"""Steps that can simply be tried again."""

from tests.crash.scenario import scenario, task

scenario("three in a row", task("a"), task("b"), task("c"))

scenario("tried again", task("a", "transient", "transient", "ok", tries=5), task("b"))

scenario("tries spent", task("a", undo="ok"), task("b", "transient", tries=2, undo="ok"), task("c"), ends="failed")

scenario("refused at once", task("a", undo="ok"), task("b", undo="ok"), task("c", "refused"), ends="failed")

scenario("hangs once", task("a", "hangs", "ok", timeout=60), task("b"))

scenario("deadline of a step", task("a", undo="ok"), task("b", "hangs", timeout=70, timeout_ms=100), ends="failed")

scenario("side by side", task("a"), task("b"), task("c", "transient", "ok"), mode="parallel")

scenario(
    "layers",
    task("a", undo="ok"),
    task("b", undo="ok"),
    task("c", depends_on=["a", "b"]),
    task("d", depends_on=["c"]),
    mode="dag",
    scheduling="layered",
)

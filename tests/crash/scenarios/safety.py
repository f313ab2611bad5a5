"""Steps that may not be repeated blindly."""

from tests.crash.scenario import GUARDED, scenario, task, unsafe

scenario("guard finds it made", task("a"), task("b", "made transient", "ok", safety=GUARDED), task("c"))

scenario("guard finds nothing", task("a", "transient", "ok", safety=GUARDED), task("b"))

scenario("guard after a timeout", task("a", "made hangs", "ok", safety=GUARDED, timeout=60), task("b"))

scenario("paid once", task("a"), unsafe("pay", timeout=200), task("b"))

scenario("paid, and nobody knows", unsafe("pay", "made hangs", "ok", timeout=60), task("b"))

scenario("not paid, and nobody knows", unsafe("pay", "hangs", "ok", timeout=60), task("b"))

scenario("paid, and only people can tell", unsafe("pay", "made unknown", "ok", finds=False, timeout=200), task("b"))

scenario("not paid, and only people can tell", unsafe("pay", "unknown", "ok", finds=False, timeout=200), task("b"))

scenario("payment refused", task("a", undo="ok"), unsafe("pay", "refused", timeout=200), ends="failed")

# Killed before the failure is recorded, its outcome is unknown: then people find it made, and that is a success.
scenario(
    "payment half made",
    task("a", undo="ok"),
    unsafe("pay", "made transient", undo="ok", timeout=200, finds=False),
    ends="failed succeeded",
)

scenario(
    "payment for people",
    task("a", undo="ok"),
    unsafe("pay", "made review", undo="ok", timeout=200, finds=False),
    ends="failed succeeded",
)

scenario(
    "two payments side by side",
    unsafe("left", timeout=200),
    unsafe("right", "made hangs", timeout=60),
    mode="parallel",
)

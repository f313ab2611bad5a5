"""What the figures should reach. Printed beside them; a target that is missed fails nothing."""

from dataclasses import dataclass
from typing import Literal

from tenuto.runtime.durable.session import LEASE_MS

LEASE_S = LEASE_MS / 1_000

MEMORY = "Tenuto, memory"
SQLITE = "Tenuto, SQLite FULL"
POSTGRES = "Tenuto, PostgreSQL"
FLOOR_SQLITE = "FastAPI and an insert, SQLite FULL"
FLOOR_POSTGRES = "FastAPI and an insert, PostgreSQL"


@dataclass(frozen=True)
class Target:
    workload: str
    system: str
    metric: str
    sign: Literal["≤", "≥"]
    value: float
    unit: str = ""
    over: str = ""  # then `value` is how many times as much as that system


TARGETS = [
    Target("saga-5", MEMORY, "time", "≤", 200, "µs"),
    Target("fan-out-1000", MEMORY, "time", "≤", 30, "ms"),
    Target("fan-out-100000", MEMORY, "time", "≤", 4, "s"),
    Target("fan-out-100000", MEMORY, "memory growth", "≤", 150, "MB"),
    Target("W1", SQLITE, "steps", "≥", 25_000, "1/s"),
    Target("W1", SQLITE, "steps", "≥", 10, over="Restate, granian"),
    Target("W1", SQLITE, "steps", "≥", 100, over="DBOS, SQLite"),
    Target("W1", SQLITE, "steps", "≥", 100, over="Temporal dev server, in memory, tuned"),
    Target("W1", SQLITE, "cpu", "≤", 0.25, "ms/execution"),
    Target("W1", SQLITE, "disk", "≤", 250, "B/step"),
    Target("W1", POSTGRES, "steps", "≥", 20_000, "1/s"),
    Target("W1", POSTGRES, "disk", "≤", 400, "B/step"),
    Target("W1-other-process", SQLITE, "steps", "≥", 5, over="Restate, granian"),
    Target("W1-two-workers", POSTGRES, "steps", "≥", 25_000, "1/s"),
    Target("W2", SQLITE, "p50", "≤", 3.5, "ms"),
    Target("W2", POSTGRES, "p50", "≤", 8, "ms"),
    Target("W3", SQLITE, "time", "≤", 80, "ms"),
    Target("W4", SQLITE, "lost", "≤", 0),
    Target("W4", POSTGRES, "lost", "≤", 0),
    Target("W4", SQLITE, "recovery", "≤", LEASE_S + 4, "s (4 beyond the lease)"),
    Target("W4", POSTGRES, "recovery", "≤", LEASE_S + 4, "s (4 beyond the lease)"),
    Target("growth", SQLITE, "kept", "≥", 80, "%"),
    Target("growth", POSTGRES, "kept", "≥", 80, "%"),
    Target("http-create", SQLITE, "requests", "≥", 0.5, over=FLOOR_SQLITE),
    Target("http-create", POSTGRES, "requests", "≥", 0.5, over=FLOOR_POSTGRES),
    Target("overload", SQLITE, "kept", "≥", 90, "%"),
    Target("overload", POSTGRES, "kept", "≥", 90, "%"),
    Target("overload-other-process", SQLITE, "kept", "≥", 90, "%"),
    Target("overload-other-process", POSTGRES, "kept", "≥", 90, "%"),
    Target("http-overload", SQLITE, "kept", "≥", 90, "%"),
    Target("http-overload", POSTGRES, "kept", "≥", 90, "%"),
    Target("http-overload", SQLITE, "429 p99", "≤", 50, "ms"),
    Target("http-overload", POSTGRES, "429 p99", "≤", 50, "ms"),
    Target("http-overload", SQLITE, "accepted p99 ÷ that at 0.8 ×", "≤", 2),
    Target("http-overload", POSTGRES, "accepted p99 ÷ that at 0.8 ×", "≤", 2),
]

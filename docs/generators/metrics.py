"""`reference/metrics.md`: every metric, its kind, its labels, what it says."""

from tenuto.telemetry import catalogue

from .source import NOTE

OPENING = f"""\
# Metrics

What `/metrics` says, for Prometheus. [Observability](../guides/observability.md) tells how to get it. Nothing is
labelled by execution or tenant. Of steps a process tells at most {catalogue.MAX_STEPS:,} apart; the rest is `other`.
Definitions that belong to one tenant are counted together, as saga `{catalogue.OF_A_TENANT}`, and their steps by type.
"""

PARTS = {
    "What a process has recorded": (
        "RequestMetrics once, by the process that recorded it: add them up over all processes.",
        catalogue.RECORDED,
    ),
    "How a process stands": (
        "Each process has its own. Those of the database are missing on `memory://`.",
        catalogue.STANDING,
    ),
    "What a service has answered": (
        "Of each process that serves HTTP; a worker has none of these. `route` is the template of a path, as in the "
        "reference of HTTP, or `other`.",
        catalogue.SERVED,
    ),
    "What the database holds": (
        "The same whichever process is asked, and at most ten seconds old: take the maximum. They are missing while "
        "the database does not answer.",
        catalogue.STORED,
    ),
}


def page() -> str:
    return f"{NOTE}\n{OPENING}" + "".join(_part(title, *part) for title, part in PARTS.items())


def _part(title: str, text: str, metrics: tuple[catalogue.Metric, ...]) -> str:
    rows = "".join(
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |\n"
        for metric in metrics
    )
    return f"\n## {title}\n\n{text}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n{rows}"

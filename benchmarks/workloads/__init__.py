"""What is measured, in the order of the report."""

from benchmarks.workload import Workload

from . import fan_out, growth, http, http_overload, in_memory, latency, overload, takeover, throughput

WORKLOADS: list[Workload] = [
    *in_memory.WORKLOADS,
    *throughput.WORKLOADS,
    *latency.WORKLOADS,
    *fan_out.WORKLOADS,
    *takeover.WORKLOADS,
    *growth.WORKLOADS,
    *http.WORKLOADS,
    *overload.WORKLOADS,
    *http_overload.WORKLOADS,
]

"""Every measurement, one after another: `make bench`. With `--help` it says how to run a part of them."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import disk, kernel_values, measure, processes
from benchmarks.peers import dbos, restate, temporal
from benchmarks.program import Unavailable
from benchmarks.results import Metric, Results
from benchmarks.system import System
from benchmarks.systems import SYSTEMS
from benchmarks.workload import FULL, QUICK, Effort, Workload
from benchmarks.workloads import WORKLOADS

PEERS: list[System] = [*restate.SYSTEMS, *temporal.SYSTEMS, *dbos.SYSTEMS]
KERNEL_VALUES = "kernel-values"
RESULTS = Path(__file__).with_name("results.json")


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if not processes.AVAILABLE:
        sys.exit("The benchmarks read processor time and memory from /proc: run them on Linux.")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # servers are ended on the way out
    effort = QUICK if options.quick else FULL
    workloads = [workload for workload in WORKLOADS if not options.only or workload.name in options.only]
    systems = [*SYSTEMS, *(PEERS if options.peers else [])]
    results = Results(ours={system.name: system.ours for system in systems})

    describe_machine(results)
    missing = prepare([system for system in systems if any(workload.name in system.stages for workload in workloads)])
    for workload in workloads:
        run(workload, systems, missing, effort, results)
        print(f"## {workload.title}\n\n{results.table(workload.name)}\n", flush=True)
        results.write(options.output)
    if KERNEL_VALUES in (options.only or [KERNEL_VALUES]):
        print("## Kernel values\n")
        kernel_values.main(["--repetitions", "3", "--loops", "5000"] if options.quick else [])


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    names = [*(workload.name for workload in WORKLOADS), KERNEL_VALUES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, on this machine.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="short, once: to see that it runs, not to quote")
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=True, help="install and measure other engines, too"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the figures are written as JSON")
    return parser.parse_args(argv)


def describe_machine(results: Results) -> None:
    with measure.window() as used:
        calibration_s = measure.calibration_s()
    results.add("machine", "this machine", {Metric("calibration", "s"): calibration_s}, used.foreign_cores)
    temporary = Path(tempfile.gettempdir())
    kind = disk.file_system(temporary)
    print(f"{measure.machine()}, calibration {calibration_s:.3f} s, databases on {kind}.\n", flush=True)
    if kind in disk.IN_MEMORY:
        print(f"{temporary} is in memory: nothing is durable there. Set TMPDIR to a folder on a disk.\n", flush=True)


def prepare(systems: Sequence[System]) -> dict[str, str]:
    """Installs what is missing. What cannot be had is named, with the reason."""
    missing = {}
    for system in systems:
        try:
            system.prepare()
        except Unavailable as error:
            missing[system.name] = f"cannot be had here: {error}"
            say(f"{system.name} {missing[system.name]}")
    return missing


def run(
    workload: Workload, systems: Sequence[System], missing: dict[str, str], effort: Effort, results: Results
) -> None:
    """Systems take turns within each repetition, so that a busy machine disturbs them alike."""
    out = dict(missing)
    for repetition in range(min(effort.repetitions, workload.at_most)):
        for system in systems:
            if workload.name not in system.stages or system.name in out:
                continue
            say(f"{workload.name}: {system.name}, {repetition + 1} of {effort.repetitions}")
            try:
                with system.stages[workload.name]() as stage:
                    measured = workload.measure(stage, system, effort)
            except Exception as error:  # one that fails is named in the report, and the others go on
                out[system.name] = str(error) if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
                continue
            results.add(workload.name, system.name, measured.figures, measured.foreign_cores)
    for system in systems:
        if workload.name in system.stages and system.name in out:
            results.note(workload.name, system.name, out[system.name])
        if system.is_remote and workload.name == "W1":
            results.copy("W1", system.name, to="W1-other-process")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

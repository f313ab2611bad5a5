"""`python -m tests.chaos`: load, kills, freezes and a database that goes away, by a seed; afterwards all is right."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from .faults import faults
from .places import File, postgres_place
from .run import Load, Run

FAULTS = 60
RATE = 40.0


def main() -> int:
    options = _parse()
    wrong = 0
    if options.database != "sqlite":
        wrong += _on_postgres(options)
    if options.database != "postgres":
        wrong += _on_sqlite(options)
    return 1 if wrong else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what goes wrong, and when")
    parser.add_argument("--database", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--faults", type=int, default=FAULTS, help="kills, freezes and ends (%(default)s)")
    parser.add_argument("--rate", type=float, default=RATE, help="starts a second, of each submitter (%(default)s)")
    return parser.parse_args()


def _on_postgres(options: argparse.Namespace) -> int:
    with postgres_place() as place:
        run = Run(place, options.seed, Load(workers=3, submitters=2, rate=options.rate))
        run.play(faults(options.seed, options.faults, databases=1 + options.faults // 12))
    return _tell(run, options, "postgres")


def _on_sqlite(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="tenuto-chaos-") as folder:
        run = Run(File(Path(folder) / "x.db"), options.seed, Load(workers=2, submitters=1, rate=options.rate))
        run.play(faults(options.seed, options.faults, copies=1 + options.faults // 6))
    return _tell(run, options, "sqlite")


def _tell(run: Run, options: argparse.Namespace, database: str) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in [*run.figures.lines(), *run.wrong]))
    again = f"--database {database} --seed {options.seed} --faults {options.faults} --rate {options.rate:g}"
    sys.stdout.write(f"  {len(run.wrong)} wrong; again: python -m tests.chaos {again}\n")
    sys.stdout.flush()
    return len(run.wrong)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.power`: the power is cut at moments that a seed chooses; whatever is on the disk is finished."""

import argparse
import logging
import sys
import time
from collections import Counter

from .run import Run

IMAGES = 300
EACH = 30  # of one run


def main() -> int:
    logging.disable()
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where the power is cut, and what is left")
    parser.add_argument("--images", type=int, default=IMAGES, help="how many (%(default)s)")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    seed = options.seed
    while counts["images"] < options.images:
        run = Run(seed, images=min(EACH, options.images - counts["images"]))
        run.play()
        counts += run.counts
        wrong += [f"seed {seed}: {line}" for line in run.wrong]
        seed += 1
    for line in [*wrong, *(f"{number:>8} {name}" for name, number in counts.items())]:
        sys.stdout.write(f"{line}\n")
    again = f"python -m tests.power --seed {options.seed} --images {options.images}"
    sys.stdout.write(f"{len(wrong)} wrong; again: {again}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

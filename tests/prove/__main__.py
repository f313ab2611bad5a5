"""`python -m tests.prove`: every proof, in an order that the seed draws. A run that was stopped is continued."""

import argparse
import logging
import math
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.draw import seed
from tests.hostile.situations import SITUATIONS as HOSTILE_SITUATIONS
from tests.simulation.situations import SITUATIONS as SIMULATION_SITUATIONS

from .proofs import SHOWN, Done, Proof, Proofs
from .report import FOLDER, Report, version

SITUATIONS = {"simulation": SIMULATION_SITUATIONS, "hostile": HOSTILE_SITUATIONS}
STOPPED = 130  # as shells say of an interrupted command


def main() -> int:
    logging.disable()
    options = _parse()
    with Proofs(seed(), options.jobs) as proofs:
        everything = list(proofs.all())
        part, parts = options.shard
        mine = [proof for proof in everything[part - 1 :: parts] if options.only in proof.name]
        if options.list:
            say("\n".join(proof.name for proof in mine))
            return 0
        return _run(Report(version()), everything, mine, options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT", help="only proofs with this text in their name")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="the Ith of N parts of all proofs")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no proof after so many minutes")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time, where a proof uses several")
    parser.add_argument("--again", action="store_true", help="repeat proofs that this commit has passed already")
    parser.add_argument("--list", action="store_true", help="print the names of the proofs, and run none")
    return parser.parse_args()


def _shard(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _run(report: Report, everything: Sequence[Proof], mine: list[Proof], options: argparse.Namespace) -> int:
    until = time.monotonic() + 60 * options.minutes
    done = {} if options.again else report.passed()
    left = [proof for proof in mine if proof.name not in done]
    Random(seed()).shuffle(left)
    report.write("run", seed=seed(), shard="{}/{}".format(*options.shard), proofs=Counter(p.kind for p in everything))
    say(f"{len(left)} proofs to run, {len(mine) - len(left)} passed before. Seed {seed()}: repeat with SEED={seed()}.")
    failed = 0
    try:
        while left and time.monotonic() < until:
            failed += _prove(left.pop(0), len(left), report)
    except KeyboardInterrupt:
        say(f"Stopped with {len(left)} proofs left. `make prove` continues.")
        return STOPPED
    missing = _missing_situations(everything, report)
    say(f"{failed} proofs failed, {len(left)} were not run. The report is in {FOLDER}.")
    return 1 if failed or missing else 0


def _prove(proof: Proof, left: int, report: Report) -> int:
    began = time.monotonic()
    try:
        done = proof.run()
    except Exception:
        done = Done({}, [traceback.format_exc()])
    seconds = round(time.monotonic() - began, 1)
    report.write(
        "proof",
        proof=proof.name, kind=proof.kind, seed=seed(), seconds=seconds, figures=done.figures, wrong=done.wrong,
    )  # fmt: skip
    say(f"{'FAILED' if done.wrong else 'passed'} {proof.name} in {seconds:.0f} s, {left} left")
    for text in done.wrong[:SHOWN]:
        say("".join(f"    {line}\n" for line in text.splitlines()))
    if done.wrong:
        say(f'  Repeat with: SEED={seed()} python -m tests.prove --again --only "{proof.name}"')
    return 1 if done.wrong else 0


def _missing_situations(everything: Sequence[Proof], report: Report) -> bool:
    """When all seeds of a simulation were run, every situation that it declares must have happened."""
    passed, missing = report.passed(), False
    for kind, situations in SITUATIONS.items():
        names = [proof.name for proof in everything if proof.kind == kind]
        if names and all(name in passed for name in names):
            met = {each for name in names for each in passed[name]["figures"]["situations"]}
            never = [each for each in situations if each not in met]
            missing = missing or bool(never)
            for each in never:
                say(f"{kind}: never happened: {each}")
    return missing


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

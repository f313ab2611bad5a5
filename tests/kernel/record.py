"""Records a scenario's history: `python -m tests.kernel.record NAME…`, or `--missing` for all that have none.

A recorded history is never overwritten: that it still means the same is its whole point. If a scenario was changed on
purpose, give the new one a new name.
"""

import sys

import msgspec

from . import history
from .scenarios import PROGRAMS


def record(name: str) -> None:
    path = history.path_of(name)
    if path.exists():
        sys.exit(f"{path} exists: a recorded history is never changed. Record the new one under a new name.")
    path.parent.mkdir(exist_ok=True)
    path.write_text(as_text(history.recorded(name, PROGRAMS[name]())), encoding="utf-8")
    sys.stdout.write(f"{path}\n")


def as_text(made: history.History) -> str:
    """JSON with a line for each decision, so that people can read it and compare two of them."""
    decisions = ",\n".join(f"  {_json(entries)}" for entries in made["decisions"])
    return f"""{{
 "name": {_json(made["name"])},
 "definition": {_json(made["definition"])},
 "decisions": [
{decisions}
 ],
 "final": {_json(made["final"])}
}}
"""


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def main(arguments: list[str]) -> None:
    missing = [name for name in PROGRAMS if not history.path_of(name).exists()]
    chosen = missing if arguments == ["--missing"] else arguments
    unknown = [name for name in chosen if name not in PROGRAMS]
    if unknown or not arguments:
        sys.exit(f"usage: python -m tests.kernel.record NAME... | --missing\nthere are: {', '.join(PROGRAMS)}")
    for name in chosen:
        record(name)


if __name__ == "__main__":
    main(sys.argv[1:])

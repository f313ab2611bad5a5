"""The report of `make prove`: JSON lines, one for each run that was begun and one for each proof that ended."""

import hashlib
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.draw import ROOT, commit

FOLDER = ROOT / "proofs"


def version() -> str:
    """The commit, with a digest of what was changed since."""
    changed = _git("status", "--porcelain") and _git("status", "--porcelain") + _git("diff", "HEAD")
    return f"{commit()}+{hashlib.sha256(changed.encode()).hexdigest()[:8]}" if changed else commit()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


class Report:
    """Lines about one version, in a file for each day. Lines that are there already are kept."""

    def __init__(self, version: str, folder: Path = FOLDER) -> None:
        self._version = version
        self._folder = folder

    def write(self, record: str, **fields: Any) -> None:
        now = datetime.now(UTC)
        line = {"record": record, "commit": self._version, "at": now.isoformat(), **fields}
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{now:%Y-%m-%d}-{self._version[:8]}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def passed(self) -> dict[str, dict[str, Any]]:
        """The proofs of this version that were made already, by name. Failed ones are left out: they are made again."""
        lines = [line for line in self._lines() if line["record"] == "proof" and not line["wrong"]]
        return {line["proof"]: line for line in lines}

    def _lines(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._folder.glob("*.jsonl")):
            for text in path.read_text(encoding="utf-8").splitlines():
                line = json.loads(text)
                if line["commit"] == self._version:
                    yield line

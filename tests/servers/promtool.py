"""`promtool`, of Prometheus: the one on the PATH, or Debian's, unpacked into the checkout (no root is needed for that).

It is in no Python registry. Where there is neither, tests fail and say how to get it.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "promtool"
PATIENT = ["-oAcquire::Retries=5", "-oAcquire::http::Timeout=20"]  # a mirror that is busy is asked again


def promtool(*arguments: str, input: str | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [_path(), *arguments]
    return subprocess.run(command, input=input, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@cache
def _path() -> str:
    found = shutil.which("promtool") or shutil.which("promtool", path=str(CACHE))
    if found is None:
        _unpack()
        found = shutil.which("promtool", path=str(CACHE))
    assert found, (
        "promtool is missing. On Debian and Ubuntu: apt-get install -y --no-install-recommends prometheus. "
        "Elsewhere it is part of Prometheus: put it on the PATH."
    )
    return found


def _unpack() -> None:
    """From Debian's package. The lists of packages are fetched into a folder of our own if the system has none."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        if not _download(folder, []):
            own = [f"-oDir::State={folder}/state", f"-oDir::Cache={folder}/cache"]
            for name in ("state/lists/partial", "cache/archives/partial"):
                Path(folder, name).mkdir(parents=True)
            subprocess.run(["apt-get", *PATIENT, *own, "-qq", "update"], capture_output=True, check=False, timeout=300)
            _download(folder, own)
        for package in Path(folder).glob("prometheus_*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, f"{folder}/unpacked"], check=True, timeout=60)
            CACHE.mkdir(parents=True, exist_ok=True)
            ready = CACHE / f"promtool.{os.getpid()}"
            shutil.copy(f"{folder}/unpacked/usr/bin/promtool", ready)
            ready.rename(CACHE / "promtool")  # another process may do the same: whole, whoever is last


def _download(folder: str, options: list[str]) -> bool:
    command = ["apt-get", *PATIENT, *options, "-qq", "download", "prometheus"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300).returncode == 0

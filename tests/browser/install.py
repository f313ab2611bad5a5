"""Installs Chromium from Debian's packages, as root with apt. `make test` runs this before the tests.

Elsewhere it does nothing: the last lines of the tests' output then say that the browser tests were not run.
"""

import os
import shutil
import subprocess
from typing import Final

from .browser import INSTALL, chromium

_PATIENT: Final = ("-qq", "-o", "DPkg::Lock::Timeout=120")


def main() -> None:
    if chromium() is not None or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    command, *arguments = INSTALL.split()
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for task in (["update"], arguments):
        subprocess.run([command, *_PATIENT, *task], check=False, timeout=600, env=environment)


main()

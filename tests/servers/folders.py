"""Where tests keep their files: in memory, if the system has a folder there with enough room.

Databases that live for one test write thousands of small files. On a disk, that costs more than the tests themselves.
"""

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108  # tests make folders of their own in it
ENOUGH_BYTES = 2 << 30


def keep_in_memory() -> None:
    """Makes a folder in memory the default for temporary files, unless TMPDIR names another one."""
    if "TMPDIR" not in os.environ and _is_usable(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # for the processes that tests start
        tempfile.tempdir = None  # chosen anew when it is next asked for


def _is_usable(folder: Path) -> bool:
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    has_room = found.f_bavail * found.f_frsize >= ENOUGH_BYTES
    return has_room and not found.f_flag & os.ST_NOEXEC  # some tests start programs that they wrote

"""What processes used, read from `/proc`: processor time and memory of whole trees, and of the machine."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
AVAILABLE = Path("/proc/stat").exists()

_PPID, _CPU_TIMES = 1, slice(11, 15)  # positions in `/proc/PID/stat` after the name: parent; own and reaped children's
_IDLE = slice(3, 5)  # idle and iowait, in the first line of `/proc/stat`
_COUNTED = 8  # user to steal; guests are counted in user already


def tree(root: int) -> list[int]:
    """This process and all that descend from it, sessions and process groups notwithstanding."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children.setdefault(int(stat[_PPID]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(root: int) -> float:
    """Processor time of a tree so far. Children that ended are counted by the parent that reaped them."""
    return sum(int(ticks) for pid in tree(root) for ticks in _stat(pid)[_CPU_TIMES]) / TICKS


def machine_busy_seconds() -> float:
    """Processor time of everything on the machine so far, what the hypervisor took away included."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]][:_COUNTED]
    return (sum(ticks) - sum(ticks[_IDLE])) / TICKS


def resident_bytes(root: int) -> int:
    return sum(_status_kib(pid, "VmRSS") for pid in tree(root)) * 1024


def peak_resident_bytes(root: int) -> int:
    """The sum of each process's own peak; pages that they share are counted in each."""
    return sum(_status_kib(pid, "VmHWM") for pid in tree(root)) * 1024


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it ended meanwhile
        return []
    return text.rpartition(")")[2].split()


def _status_kib(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)

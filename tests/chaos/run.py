"""One run: everybody works, faults come as the seed says, then peace until all has ended; and the verdict."""

import asyncio
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .faults import Fault
from .figures import Figures
from .images import Image, finish, take
from .outside import Outside
from .places import DECISIONS, OPEN, STILL_OPEN, UNDECIDED, File, Place, Postgres, Unreachable, ask, left_by
from .processes import Troupe
from .roles import Role
from .verdict import judge

LEASE_S = 2
PATIENCE_S = 180.0  # without a single decision in the database
SHOWN = 10


class Load(NamedTuple):
    workers: int
    submitters: int
    rate: float  # executions a second, of each submitter


class Run:
    def __init__(self, place: Place, seed: int, load: Load) -> None:
        self._place = place
        self._seed = seed
        self._load = load
        self._folder = Path(tempfile.mkdtemp(prefix="tenuto-chaos-"))
        self._troupe = Troupe(self._folder)
        self._outside = Outside(self._folder / "effects", seed)
        self._frozen: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._images: list[Image] = []
        self.figures = Figures(place.name)
        self.wrong = self._troupe.wrong

    def play(self, faults: Iterable[Fault]) -> None:
        """Afterwards `wrong` says what is wrong, and `figures` what it was."""
        began = time.monotonic()
        try:
            self._raise_curtain()
            for fault in faults:
                time.sleep(fault.after)
                self._inject(fault)
            self._calm_down()
            asyncio.run(self._judge())
        finally:
            self._troupe.kill_all()
            shutil.rmtree(self._folder, ignore_errors=True)
        self.figures.seconds = time.monotonic() - began
        self.figures.stops = self._troupe.stops

    def _raise_curtain(self) -> None:
        for number in range(self._load.workers):
            self._start("work", f"worker{number}")
        for number in range(self._load.submitters):
            self._start("submit", f"submitter{number}", self._load.rate)
        self._start("decide", "people", 1.0)
        self._until(lambda: bool(self._outside.lines("made")), "nobody did anything")

    def _start(self, play: str, name: str, rate: float = 0.0) -> None:
        self._troupe.start(Role(play, name, self._place.url, self._folder, self._seed, f"{LEASE_S}s", rate))

    # -- Faults --------------------------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        self._troupe.check()
        self.figures.faults[fault.kind] += 1
        match fault.kind:
            case "kill":
                self._kill_worker(self._worker(fault))
            case "freeze":
                self._freeze(self._worker(fault), fault.length * LEASE_S)
            case "end":
                self._troupe.start(self._troupe.end(self._worker(fault)))
            case "kill submitter":
                names = self._troupe.names("submit")
                self._troupe.kill(names[fault.which % len(names)])
            case "kill people":
                self._troupe.kill("people")
            case "kill database":
                self._kill_database()
            case "copy":
                assert isinstance(self._place, File)
                self._images.append(take(self._place.path, self._folder / f"image{len(self._images)}"))

    def _worker(self, fault: Fault) -> str:
        """One that is not frozen; if all are, whoever thaws first."""
        while True:
            names = [name for name in self._troupe.names("work") if name not in self._frozen]
            if names:
                return sorted(names)[fault.which % len(names)]
            time.sleep(0.05)

    def _kill_worker(self, name: str) -> None:
        killed_at, wall = time.monotonic(), int(time.time() * 1_000)
        pid = self._troupe.kill(name)
        self._meanwhile(lambda: self._watch_takeover(pid, killed_at, wall))

    def _watch_takeover(self, pid: int, killed_at: float, wall: int) -> None:
        while True:
            with suppress(Unreachable):
                if not ask(self._place, left_by(pid, wall)):
                    self.figures.taken_over.append(time.monotonic() - killed_at)
                    return
            if time.monotonic() > killed_at + PATIENCE_S:
                self.wrong.append(f"nobody took over what process {pid} had owned")
                return
            time.sleep(0.05)

    def _freeze(self, name: str, seconds: float) -> None:
        self._frozen.add(name)
        self._troupe.freeze(name)

        def thaw() -> None:
            time.sleep(seconds)
            self._troupe.thaw(name)
            self._frozen.discard(name)

        self._meanwhile(thaw)

    def _kill_database(self) -> None:
        assert isinstance(self._place, Postgres)
        killed_at = time.monotonic()
        self._place.kill()
        self.figures.outages.append((killed_at, time.monotonic()))

    def _meanwhile(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    # -- Peace ---------------------------------------------------------------------------------------------------------

    def _calm_down(self) -> None:
        """No more faults and whims, nothing new; people answer everything, and all comes to its end."""
        for thread in self._threads:
            thread.join()
        for name in [*self._troupe.names("submit"), "people"]:
            self._troupe.end(name)
        self._start("decide", "people")
        self._until_all_ended()
        self._troupe.check()
        for name in ["people", *self._troupe.names("work")]:
            self._troupe.end(name)

    def _until_all_ended(self) -> None:
        decisions, since = -1, time.monotonic()
        while left := ask(self._place, OPEN) + ask(self._place, UNDECIDED):
            now = ask(self._place, DECISIONS)
            if now != decisions:
                decisions, since = now, time.monotonic()
            elif time.monotonic() > since + PATIENCE_S:
                rows = "\n".join(map(str, self._place.rows(STILL_OPEN)[:SHOWN]))
                self.wrong.append(f"{left} neither ended nor were decided, and nothing happens any more:\n{rows}")
                return
            time.sleep(0.2)

    def _until(self, ready: Callable[[], bool], otherwise: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not ready():
            self._troupe.check()
            if self.wrong or time.monotonic() > give_up_at:
                raise AssertionError("\n".join([otherwise, *self.wrong]))
            time.sleep(0.05)

    async def _judge(self) -> None:
        wrong, record = await judge(self._place.url, self._outside)
        self.wrong += wrong
        self.figures.count(record, self._outside)
        for number, image in enumerate(self._images):
            found = await finish(image, self._outside.folder, self._seed)
            self.wrong += [f"copy {number}: {line}" for line in found]
            self.figures.images += 1

"""Shows the news: on a terminal as a view that is drawn again and again, elsewhere as lines."""

import sys
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .ledger import Ledger
from .news import STATUSES, News, Tone

EVENTS = 10
FIXED_LINES = 13  # of the view, without events
COLOURS = {
    "pending": "bright_black", "reserved": "cyan", "paid": "blue",
    "confirmed": "green", "canceled": "yellow", "refunded": "magenta",
}  # fmt: skip
TONES: dict[Tone, str] = {"good": "green", "bad": "yellow", "notice": "", "loud": "bold"}
FIGURES = ("retries", "reconciliations", "compensations", "takeovers")


class View:
    def __init__(self, news: News, out: TextIO | None = None) -> None:
        self._console = Console(file=out or sys.stdout, highlight=False, soft_wrap=True)
        self._news = news
        self._live: Live | None = None
        self._printed = 0
        self.headline = ""
        self.question = ""

    @property
    def is_live(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def open(self) -> None:
        if self.is_live:
            self._live = Live(self._drawn(), console=self._console, auto_refresh=False, vertical_overflow="crop")
            self._live.start(refresh=True)

    def show(self) -> None:
        if self._live is not None:
            self._live.update(self._drawn(), refresh=True)
            return
        for seconds, text, _ in self._news.events[self._printed :]:
            self.say(f"{seconds:6.1f} s  {text}")
        self._printed = len(self._news.events)

    def phase(self, headline: str) -> None:
        """What the reader sees now. It is an event, too."""
        self.headline = headline
        self._news.add(headline, "loud")
        self.show()

    def close(self) -> None:
        """Leaves the last view where it is."""
        self.question = ""
        self.show()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str = "") -> None:
        self._console.print(Text(text))

    def tell(self, ledger: Ledger) -> None:
        self.say()
        for name, text in ledger.lines:
            self._console.print(Text.assemble((f"  {name:<13}", "bold"), text))
        self.say()
        for problem in ledger.wrong:
            self._console.print(Text(f"  {problem}", "red"))
        verdict = ("It does not add up.", "bold red") if ledger.wrong else ("It adds up.", "bold green")
        self._console.print(Text.assemble("  ", verdict))

    # -- Drawing -------------------------------------------------------------------------------------------------------

    def _drawn(self) -> Group:
        news = self._news
        title = Text.assemble(("Tenuto", "bold"), "  ", (f"{news.seconds:4.0f} s", "dim"), "  ", self.headline)
        parts: list[RenderableType] = [title, Text(), self._orders(), Text(), self._figures(), Text(), self._events()]
        if self.question:
            parts += [Text(), Text(self.question, "bold reverse")]
        for part in parts:
            if isinstance(part, Text):
                part.no_wrap, part.overflow = True, "ellipsis"
        return Group(*parts)

    def _orders(self) -> Table:
        counts = {status: self._news.count(status) for status in STATUSES}
        room = max(10, min(60, self._console.width - 22))
        scale = min(1.0, room / max(1, *counts.values()))
        table = Table.grid(padding=(0, 1))
        for status, number in counts.items():
            bar = "█" * max(round(number * scale), min(number, 1))
            table.add_row(Text(f"  {status:<10}"), Text(f"{number:>4}"), Text(bar, COLOURS[status]))
        return table

    def _figures(self) -> Text:
        told = "   ".join(f"{name} {self._news.figures[name]}" for name in FIGURES)
        return Text(f"  {told}   {self._news.per_second:.1f} orders/s")

    def _events(self) -> Group:
        number = max(3, min(EVENTS, self._console.height - FIXED_LINES - 1))
        shown = self._news.events[-number:]
        lines = [
            Text.assemble((f"  {seconds:5.1f} s  ", "dim"), (text, TONES[tone]), no_wrap=True, overflow="ellipsis")
            for seconds, text, tone in shown
        ]
        return Group(*lines, *(Text() for _ in range(number - len(shown))))

"""Figures as they come in, and what is made of them: a Markdown table for each workload, and `results.json`."""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypedDict

from benchmarks.measure import Series
from benchmarks.targets import TARGETS, Target

FOREIGN = "foreign_cores"


class Metric(NamedTuple):
    name: str
    unit: str

    @property
    def title(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


class Row(TypedDict):
    workload: str
    system: str
    metric: str
    value: float
    unit: str
    ratio_to_us: float | None


@dataclass
class Results:
    """Each workload's figures by system and metric, in the order in which they were first taken."""

    ours: Mapping[str, str]  # of each system, the one of ours that it is compared with
    _series: dict[tuple[str, str, Metric], Series] = field(default_factory=dict)
    _notes: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, workload: str, system: str, figures: Mapping[Metric, float], foreign_cores: float) -> None:
        """What one repetition gave."""
        for metric, value in figures.items():
            self._series.setdefault((workload, system, metric), Series()).add(value, foreign_cores)

    def note(self, workload: str, system: str, text: str) -> None:
        """Something was not measured, and why."""
        self._notes[workload, system] = text

    def copy(self, workload: str, system: str, to: str) -> None:
        """The same figures answer another question, too."""
        for (its, whose, metric), series in list(self._series.items()):
            if (its, whose) == (workload, system):
                self._series[to, system, metric] = series

    # For programs

    def rows(self) -> list[Row]:
        return [row for (workload, system, metric) in self._series for row in self._rows(workload, system, metric)]

    def _rows(self, workload: str, system: str, metric: Metric) -> Iterator[Row]:
        series = self._series[workload, system, metric]
        yield Row(
            workload=workload,
            system=system,
            metric=metric.name,
            value=_rounded(series.median),
            unit=metric.unit,
            ratio_to_us=self._ratio(workload, system, metric),
        )
        if metric == self._metrics(workload)[-1]:
            yield Row(
                workload=workload,
                system=system,
                metric=FOREIGN,
                value=_rounded(statistics.median(series.foreign_cores)),
                unit="cores",
                ratio_to_us=None,
            )

    def _ratio(self, workload: str, system: str, metric: Metric) -> float | None:
        own = self._series.get((workload, self.ours.get(system, ""), metric))
        if own is None or own.median == 0:
            return None
        return _rounded(self._series[workload, system, metric].median / own.median)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.rows(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    # For people

    def table(self, workload: str) -> str:
        """Markdown: a line for each system, then the targets, then what is missing."""
        metrics = self._metrics(workload)
        lines = list(self._lines(workload, metrics)) if metrics else []
        lines += [f"- Target: {self._judged(target)}" for target in TARGETS if metrics and target.workload == workload]
        lines += [f"- {system}: {text}" for (where, system), text in self._notes.items() if where == workload]
        return "\n".join(lines)

    def _lines(self, workload: str, metrics: list[Metric]) -> Iterator[str]:
        titles = [*(metric.title for metric in metrics), f"{metrics[0].name} ÷ ours", "clean", "foreign cores"]
        yield f"| | {' | '.join(titles)} |"
        yield "|---|" + "---:|" * (len(metrics) + 3)
        for system in self._systems(workload):
            found = [self._series.get((workload, system, metric)) for metric in metrics]
            series = next(one for one in found if one is not None)
            cells = [_cell(one) if one is not None else "–" for one in found]
            cells += [self._ratio_cell(workload, system, metrics[0]), f"{len(series.clean)}/{len(series.values)}"]
            yield f"| {system} | {' | '.join(cells)} | {statistics.median(series.foreign_cores):.2f} |"

    def _ratio_cell(self, workload: str, system: str, metric: Metric) -> str:
        pair = [self._series.get((workload, name, metric)) for name in (system, self.ours[system])]
        ratio = self._ratio(workload, system, metric) if pair[0] is not None else None
        if ratio is None:
            return "–"
        return f"{_number(ratio)}{'' if all(series and series.clean for series in pair) else ' †'}"

    def _judged(self, target: Target) -> str:
        figure = self._median(target.workload, target.system, target.metric)
        text = f"{target.system}: {target.metric} {target.sign} {_number(target.value)} {target.unit}".rstrip()
        if target.over:
            other = self._median(target.workload, target.over, target.metric)
            text = f"{target.system}: {target.metric} {target.sign} {_number(target.value)} × {target.over}"
            figure = figure / other if figure is not None and other else None
        return f"{text}; {'measured ' + _number(figure) if figure is not None else 'not measured'}"

    def _median(self, workload: str, system: str, metric: str) -> float | None:
        for (its, whose, which), series in self._series.items():
            if (its, whose, which.name) == (workload, system, metric):
                return series.median
        return None

    def _metrics(self, workload: str) -> list[Metric]:
        return list(dict.fromkeys(metric for its, _, metric in self._series if its == workload))

    def _systems(self, workload: str) -> list[str]:
        found = {system for its, system, _ in self._series if its == workload}
        return [system for system in self.ours if system in found]


def _cell(series: Series) -> str:
    used = series.used
    spread = f" ({_number(min(used))}..{_number(max(used))})" if min(used) != max(used) else ""
    return f"{_number(series.median)}{spread}{'' if series.clean else ' †'}"


def _number(value: float) -> str:
    """Three significant digits, or whole with separators."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")

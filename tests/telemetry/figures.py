"""Reads what `/metrics` says."""

from prometheus_client.parser import text_string_to_metric_families

from tenuto.telemetry import Telemetry


class Figures:
    """`figures["name", "value of a label", …]`, or with a name alone the sum over all labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def __getitem__(self, wanted: str | tuple[str, ...]) -> float:
        name, *labels = (wanted,) if isinstance(wanted, str) else wanted
        found = [s.value for s in self.samples if s.name == name and set(labels) <= set(s.labels.values())]
        assert found, f"there is no {wanted}"
        return sum(found)

    def __contains__(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)


async def figures(telemetry: Telemetry) -> Figures:
    return Figures((await telemetry.render()).decode())

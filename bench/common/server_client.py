"""What benchmarks and tests read from a server: its metrics and the events of a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from jaxserve.bench.event_reader import EventReader


@dataclass(frozen=True, slots=True)
class Metrics:
    """One scrape of /metrics."""

    samples: tuple[Sample, ...]

    def total(self, name: str) -> float:
        """The sum of a metric's samples, whatever their labels."""
        found = [sample.value for sample in self.samples if sample.name == name]
        assert found, f"no metric {name}"
        return sum(found)

    def one(self, name: str, **labels: str) -> float:
        """The value of the only sample of this name and these labels."""
        found = [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return found[0]


async def scrape(http: aiohttp.ClientSession) -> Metrics:
    async with http.get("/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        families = text_string_to_metric_families(await response.text())
        return Metrics(tuple(sample for family in families for sample in family.samples))


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a streamed answer, parsed; "[DONE]" as itself."""
    reader = EventReader()
    async for line in response.content:  # by lines, so that nothing is read ahead of the caller
        for data in reader.feed(line):
            yield "[DONE]" if data == b"[DONE]" else json.loads(data)

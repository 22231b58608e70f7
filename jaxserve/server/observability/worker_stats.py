"""Adds up the statistics of several server processes in front of one engine (--api-workers).

Any of them may get a request for /load or /metrics. Each process answers the others on a Unix
socket in the engine's folder, which only its owner can enter.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from jaxserve.server.admission import Admission

log = logging.getLogger(__name__)

TIMEOUT = aiohttp.ClientTimeout(total=5.0)
# The minimum over processes is reported; all other metrics are added up.
START_TIME = "process_start_time_seconds"

Stats = TypeVar("Stats")
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """Exchanges statistics with the other server processes.

    Args:
        folder: where their sockets are.
        number: this process's number.
        count: of processes; their numbers begin at 0.
    """

    folder: Path
    number: int = 0
    count: int = 1

    @asynccontextmanager
    async def serve_own(
        self, admission: Admission, registry: CollectorRegistry
    ) -> AsyncIterator[None]:
        """Answers the other processes with this one's statistics while the context is open."""
        if self.count == 1:
            yield
            return

        async def load(_: web.Request) -> web.Response:
            return web.Response(body=_encode(admission.in_flight))

        async def metrics(_: web.Request) -> web.Response:
            return web.Response(body=_encode([_Family.of(f) for f in registry.collect()]))

        app = web.Application()
        app.add_routes([web.get("/load", load), web.get("/metrics", metrics)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.UnixSite(runner, self._socket(self.number)).start()
            yield
        finally:
            await runner.cleanup()

    async def in_flight(self) -> int:
        """Requests in flight in the other processes."""
        return sum(await self._query("/load", int))

    async def metrics(self, own: Iterable[Metric]) -> Iterable[Metric]:
        """This process's metrics, with those of the others added."""
        families = {family.name: family for family in own}
        for counted in await self._query("/metrics", list[_Family]):
            for family in counted:
                empty = Metric(family.name, family.documentation, family.type)
                family.add_to(families.setdefault(family.name, empty))
        return families.values()

    async def _query(self, path: str, kind: type[Stats]) -> list[Stats]:
        others = (n for n in range(self.count) if n != self.number)
        answers = await asyncio.gather(*(_get(self._socket(n), path) for n in others))
        return [msgspec.msgpack.decode(answer, type=kind) for answer in answers if answer]

    def _socket(self, number: int) -> str:
        return str(self.folder / f"api-worker-{number}")


class _Family(msgspec.Struct, array_like=True):
    """A metric, to be sent. Args: samples: the name, labels and value of each."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def of(cls, metric: Metric) -> _Family:
        samples = [(s.name, s.labels, s.value) for s in metric.samples]
        return cls(metric.name, metric.documentation, metric.type, samples)

    def add_to(self, metric: Metric) -> None:
        """Adds each sample to the one with the same name and labels."""
        index = {_key(s.name, s.labels): i for i, s in enumerate(metric.samples)}
        for name, labels, value in self.samples:
            if (i := index.get(_key(name, labels))) is None:
                metric.add_sample(name, labels, value)
            else:
                known = metric.samples[i]
                total = min(known.value, value) if name == START_TIME else known.value + value
                metric.samples[i] = known._replace(value=total)


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def _get(socket: str, path: str) -> bytes | None:
    """A process's answer; None if it doesn't listen yet, has ended, or doesn't answer in time."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(socket), timeout=TIMEOUT, raise_for_status=True
            ) as http,
            http.get(f"http://api-worker{path}") as response,
        ):
            return await response.read()
    except TimeoutError:
        log.warning("%s doesn't answer; its figures are left out", Path(socket).name)
        return None
    except aiohttp.ClientConnectionError:
        return None

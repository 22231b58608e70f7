"""Several server processes in front of one engine answer /load and /metrics as one.

Each listens on a Unix socket in the engine's folder, which only its owner can enter, and asks the
others there.
"""

from __future__ import annotations

import asyncio
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

ANSWER_S = aiohttp.ClientTimeout(total=5.0)
STARTED = "process_start_time_seconds"  # of which the earliest holds; all else is added up

Answer = TypeVar("Answer")
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The server processes, as one of them sees them.

    Args:
        folder: where their sockets are.
        number: this one's.
        count: how many there are; their numbers begin at 0.
    """

    folder: Path
    number: int = 0
    count: int = 1

    @asynccontextmanager
    async def answering(
        self, admission: Admission, registry: CollectorRegistry
    ) -> AsyncIterator[None]:
        """Tells the others what this process alone knows."""
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
        return sum(await self._ask("/load", int))

    async def metrics(self, own: Iterable[Metric]) -> Iterable[Metric]:
        """This process's figures and the others' together."""
        families = {family.name: family for family in own}
        for counted in await self._ask("/metrics", list[_Family]):
            for family in counted:
                empty = Metric(family.name, family.documentation, family.type)
                family.add_to(families.setdefault(family.name, empty))
        return families.values()

    async def _ask(self, path: str, kind: type[Answer]) -> list[Answer]:
        others = (n for n in range(self.count) if n != self.number)
        answers = await asyncio.gather(*(_get(self._socket(n), path) for n in others))
        return [msgspec.msgpack.decode(answer, type=kind) for answer in answers if answer]

    def _socket(self, number: int) -> str:
        return str(self.folder / f"peer-{number}")


class _Family(msgspec.Struct, array_like=True):
    """A metric on its way. Args: samples: the name, labels and value of each."""

    name: str
    documentation: str
    type: str
    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def of(cls, metric: Metric) -> _Family:
        samples = [(s.name, s.labels, s.value) for s in metric.samples]
        return cls(metric.name, metric.documentation, metric.type, samples)

    def add_to(self, metric: Metric) -> None:
        """Joins each sample with the one of the same name and labels."""
        at = {_key(s.name, s.labels): i for i, s in enumerate(metric.samples)}
        for name, labels, value in self.samples:
            if (i := at.get(_key(name, labels))) is None:
                metric.add_sample(name, labels, value)
            else:
                known = metric.samples[i]
                both = min(known.value, value) if name == STARTED else known.value + value
                metric.samples[i] = known._replace(value=both)


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


async def _get(socket: str, path: str) -> bytes | None:
    """What a process answers; None of one that hasn't begun to listen or has ended."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(socket), timeout=ANSWER_S, raise_for_status=True
            ) as http,
            http.get(f"http://peer{path}") as response,
        ):
            return await response.read()
    except aiohttp.ClientConnectionError as error:
        if isinstance(error, TimeoutError):
            raise
        return None

"""Requests that show what paging does: shared beginnings, several samples, long prompts."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import aiohttp

from bench.server.demo_server import MODEL

ADVICE = "You are a careful writer. You answer at length, in plain words. " * 5
NAMES = ("story", "report", "note")


def some_request(draws: random.Random, kind: str, number: int) -> dict[str, Any]:
    """The body of a request of a kind in NAMES."""
    words = " ".join(draws.choice(("sea", "land", "air", "fire")) for _ in range(300))
    body: dict[str, Any] = {"model": MODEL, "ignore_eos": True, "seed": number}
    body["max_tokens"] = draws.choice((60, 120, 240))
    if kind == "story":  # begins like all the others
        return body | {"prompt": f"{ADVICE}Story {number}: {words[:200]}"}
    if kind == "report":  # three answers
        return body | {"prompt": f"Report {number}: {words[:160]}", "n": 3}
    return body | {"prompt": f"Note {number}: {words}"}


class Load:
    """Keeps a number of requests in flight until its task is cancelled.

    done: requests that were answered. failed: the others.
    """

    def __init__(self, http: aiohttp.ClientSession, in_flight: int) -> None:
        self._http, self._in_flight = http, in_flight
        self._draws = random.Random(1)
        self._number = 0
        self.done = self.failed = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(self._one_after_the_other())

    async def _one_after_the_other(self) -> None:
        while True:
            self._number += 1
            kind = self._draws.choices(NAMES, (5, 2, 2))[0]
            body = some_request(self._draws, kind, self._number)
            headers = {"X-Request-Id": f"{kind}-{self._number}"}
            with suppress(aiohttp.ClientError, TimeoutError):
                async with self._http.post("/v1/completions", json=body, headers=headers) as answer:
                    await answer.read()
                    if answer.status == 200:
                        self.done += 1
                        continue
            self.failed += 1
            await asyncio.sleep(1)

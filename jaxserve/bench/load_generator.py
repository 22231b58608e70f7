"""Sends load to a server: open loop (a rate of arrivals), closed loop (a concurrency), or both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from jaxserve.bench.arrivals import arrival_times
from jaxserve.bench.datasets import Conversation
from jaxserve.bench.settings import LoadConfig
from jaxserve.bench.timed_request import Outcome, first_model, stream


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a run.

    Args:
        model: name in the requests.
        outcomes: one a request, in the order in which they ended.
        duration_s: from the beginning to the end of the last answer.
    """

    model: str
    outcomes: list[Outcome]
    duration_s: float


async def drive(
    config: LoadConfig,
    conversations: Sequence[Conversation],
    warm_up: Sequence[Conversation] = (),
    seed: int = 0,
    on_done: Callable[[], object] = lambda: None,
) -> Load:
    """Sends all conversations and waits for their answers.

    Args:
        warm_up: sent first, with the same concurrency, and not counted.
        on_done: called after each request that counts.

    Raises:
        ConfigError: no model was given, and the server lists none.
    """
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    async with aiohttp.ClientSession(
        config.base_url.rstrip("/"),
        headers=headers,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=config.request_timeout),
    ) as http:
        model = config.model or await first_model(http)
        client = _ConversationClient(http, config, model, seed)
        at_once = config.max_concurrency or len(conversations)
        await _work(client, iter((0.0, c) for c in warm_up), min(at_once, len(warm_up)), 0.0)
        client.outcomes, client.on_done = [], on_done
        arrivals = arrival_times(
            len(conversations), config.request_rate, config.burstiness, config.ramp_up, seed
        )
        stagger_s = config.ramp_up / at_once if max(arrivals, default=0.0) == 0.0 else 0.0
        began = time.perf_counter()
        jobs = zip(arrivals, conversations, strict=True)
        await _work(client, jobs, min(at_once, len(conversations)), stagger_s)
        return Load(model, client.outcomes, time.perf_counter() - began)


async def _work(
    client: _ConversationClient,
    jobs: Iterator[tuple[float, Conversation]],
    workers: int,
    stagger_s: float,
) -> None:
    """Runs the jobs with this number of workers; each waits until its job's time.

    Args:
        stagger_s: seconds between the workers' first jobs.
    """
    began = time.perf_counter()

    async def sleep_until(at: float) -> None:
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))

    async def work(number: int) -> None:
        await sleep_until(number * stagger_s)
        for at, conversation in jobs:
            await sleep_until(at)
            await client.send(conversation)

    async with asyncio.TaskGroup() as group:
        for number in range(workers):
            group.create_task(work(number))


class _ConversationClient:
    """Sends conversations to one model of one server."""

    def __init__(
        self, http: aiohttp.ClientSession, config: LoadConfig, model: str, seed: int
    ) -> None:
        self._http, self._config = http, config
        self._body: dict[str, Any] = {
            "model": model,
            "temperature": config.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if config.ignore_eos:
            self._body["ignore_eos"] = True  # OpenAI's own servers and TGI don't have this field
        if config.temperature > 0:
            self._body["seed"] = seed
        self.outcomes: list[Outcome] = []
        self.on_done: Callable[[], object] = lambda: None

    async def send(self, conversation: Conversation) -> None:
        """Sends each question with all messages before it; an error ends the conversation."""
        chat = self._config.endpoint == "chat"
        path = "/v1/chat/completions" if chat else "/v1/completions"
        messages: list[dict[str, str]] = []
        for turn in conversation:
            messages.append({"role": "user", "content": turn.text})
            prompt: dict[str, Any] = (
                {"messages": messages}
                if chat
                else {"prompt": "\n".join(message["content"] for message in messages)}
            )
            body = self._body | prompt | {"max_tokens": turn.output_tokens}
            outcome = await stream(self._http, path, body)
            self.outcomes.append(outcome)
            self.on_done()
            if outcome.error is not None:
                return
            messages.append({"role": "assistant", "content": outcome.text})

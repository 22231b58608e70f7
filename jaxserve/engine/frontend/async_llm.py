"""AsyncLLM: the offline API for scripts that stream, in front of an engine process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from jaxserve.config import DEFAULT_MODEL
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.engine.frontend.collector import Collector
from jaxserve.engine.frontend.prompts import (
    Message,
    PromptInput,
    as_prompt,
    chat_prompt,
    engine_config,
)
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import SamplingParams


class AsyncLLM:
    """Generates text with one model, in an engine process of its own, for many tasks at once.

    Args:
        model, settings: as of LLM.

    Example:
        >>> async with AsyncLLM("smollm2-135m") as llm:
        ...     async for output in llm.generate("The capital of France is"):
        ...         print(output.outputs[0].text)
    """

    def __init__(self, model: str = DEFAULT_MODEL, **settings: Any) -> None:
        self.config = engine_config(model, settings)
        self._client: EngineClient | None = None
        self._ids = itertools.count()

    async def __aenter__(self) -> AsyncLLM:
        """Starts the engine process; returns when it is ready. Errors as EngineClient.start()'s."""
        self._client = await EngineClient.start(self.config)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Ends the engine process; what still runs fails."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    @property
    def _engine(self) -> EngineClient:
        if self._client is None:
            raise RuntimeError(
                "AsyncLLM has no engine: use it as `async with AsyncLLM(...) as llm`"
            )
        return self._client

    def default_sampling_params(self) -> SamplingParams:
        """As LLM.default_sampling_params()."""
        return SamplingParams(**self._engine.sampling_defaults)

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        lora: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Completes one prompt. Each output has all text so far; the last one is `finished`.
        Closing the iterator early aborts the request.

        Args:
            prompt: text, token ids, or a mapping with one of them, as of LLM.generate().
            request_id: for logs, and of the outputs; None counts from "0" on.
            priority, cache_salt: as of EngineClient.stream().
            lora: the name of an adapter of the settings; None is the base model.

        Raises:
            InvalidRequestError, OverloadedError, EngineDeadError: before the first output.
            EngineError, EngineDeadError: afterwards.
        """
        engine, given = self._engine, as_prompt(prompt)
        params = sampling_params or self.default_sampling_params()
        ids = engine.prepare(given, params)
        name = str(next(self._ids)) if request_id is None else request_id
        text = given if isinstance(given, str) else None
        collector = Collector(engine.tokenizer, 0, text, ids, params)
        batches = engine.stream(
            [ids], params, request_id=name, priority=priority, cache_salt=cache_salt, adapter=lora
        )
        async with aclosing(batches):
            async for batch in batches:
                for delta in batch:
                    collector.add(delta, delta.index)
                yield collector.output(name)

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        **template: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answers a conversation. Args and errors as of generate() and of LLM.chat()."""
        ids = chat_prompt(self._engine.tokenizer, messages, template)
        outputs = self.generate(ids, sampling_params, request_id)
        async with aclosing(outputs):
            async for output in outputs:
                yield output

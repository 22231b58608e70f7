"""LLM: the offline API. It runs the engine's core in the caller's own process."""

from __future__ import annotations

import itertools
import random
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import FrameType
from typing import Any

import numpy as np

import checkpoints
from jaxserve.config import DEFAULT_MODEL, EngineConfig
from jaxserve.engine.core.protocol import as_error
from jaxserve.engine.frontend.output_processor import OutputProcessor
from jaxserve.engine.frontend.request_validation import Prompt, RequestValidator
from jaxserve.engine.frontend.sampling_defaults import sampling_defaults
from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta, CompletionOutput, RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import load_tokenizer

Message = Mapping[str, Any]
PromptInput = Prompt | Mapping[str, Any]


class _Collector:
    """One request, and the deltas of its choices so far."""

    def __init__(self, prompt: Prompt, ids: list[int], params: SamplingParams, llm: LLM) -> None:
        self.prompt = prompt if isinstance(prompt, str) else None
        self.prompt_ids, self.params = ids, params
        self.choices = OutputProcessor(llm.tokenizer, params, ids)
        self.deltas: list[list[CompletionDelta]] = [[] for _ in range(params.n)]

    def output(self, request_id: str) -> RequestOutput:
        outputs = tuple(map(CompletionOutput.join, self.deltas))
        first = self.deltas[0][0]
        return RequestOutput(
            request_id,
            self.prompt,
            tuple(self.prompt_ids),
            outputs,
            first.prompt_logprobs,
            first.cached_tokens or 0,
        )


class LLM:
    """Generates text with one model.

    Args:
        model: as EngineConfig.model.
        progress: show progress bars on stderr.
        settings: any other field of EngineConfig. max_queued_requests has no limit by default.

    Example:
        >>> llm = LLM("smollm2-135m")
        >>> done = llm.generate("The capital of France is", SamplingParams(temperature=0))
        >>> done[0].outputs[0].text
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, progress: bool = True, **settings: Any
    ) -> None:
        unknown = settings.keys() - {f.name for f in fields(EngineConfig)}
        if unknown:
            raise TypeError(f"LLM has no setting {', '.join(sorted(unknown))}; see EngineConfig")
        self.config = EngineConfig(model=model, **{"max_queued_requests": sys.maxsize} | settings)
        # The one place where the front end runs the core in its own process, and so needs jax.
        from jaxserve.engine.core.engine_core import EngineCore

        path = checkpoints.pull(model)
        self.tokenizer = load_tokenizer(path)
        self._sampling_defaults = sampling_defaults(self.config, path)
        self.core = EngineCore(self.config, path, self.tokenizer, progress)
        ready = self.core.ready
        self._validator = RequestValidator(
            self.tokenizer, ready.max_model_len, ready.vocab_size, random.Random(self.config.seed)
        )
        self._counter = itertools.count()

    def default_sampling_params(self) -> SamplingParams:
        """The params of prompts that come without: those of the model's generation_config.json, and
        SamplingParams' defaults for the rest. Params that are given are used as they are."""
        return SamplingParams(**self._sampling_defaults)

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts, one or many, in order. Each is text, token ids, or a mapping with one
        of them under "prompt" or "prompt_token_ids", as vLLM has it.

        Args:
            params: one for all, or one a prompt; None is default_sampling_params().

        Raises:
            InvalidRequestError: a prompt or its params can't be served. No prompt was run, unless
                the cause is a grammar that doesn't compile.
            EngineError: the engine failed a request; the others are aborted.
        """
        several = _several(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.default_sampling_params()] * len(several)
        if len(params) != len(several):
            raise InvalidRequestError(
                f"{len(several)} prompts came with {len(params)} params: give one, or one a prompt"
            )
        collectors = {}
        for prompt, p in zip(several, params, strict=True):
            ids = self._validator.prompt_ids(prompt, p)
            collectors[f"llm-{next(self._counter)}"] = _Collector(prompt, ids, p, self)
        self._run(collectors)
        return [collector.output(request_id) for request_id, collector in collectors.items()]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, each a list of {"role", "content"} messages. Content
        is text, or parts of {"type": "text", "text": ...}.

        Args:
            template: arguments of the chat template.

        Raises:
            InvalidRequestError: the template doesn't use an argument, or refuses the messages; and
                as generate().
        """
        for name in template:
            if not self.tokenizer.template_reads(name):
                raise InvalidRequestError(
                    f"this model's chat template doesn't use {name}: leave it out", name
                )
        several: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        texts = [
            self.tokenizer.apply_chat_template(list(map(_with_text, m)), **template)
            for m in several
        ]
        ids = [self.tokenizer.encode(t, add_special_tokens=False) for t in texts]
        return self.generate(ids, params)

    def embed(self, prompts: PromptInput | Sequence[PromptInput]) -> np.ndarray:
        """Embeddings [N, E] float32 of prompts, each the last hidden state of its last token, of
        length 1. Errors as generate()'s."""
        params = SamplingParams(temperature=0, max_tokens=1)
        collectors = {}
        for prompt in _several(prompts):
            ids = self._validator.prompt_ids(prompt, params, generates=False)
            collectors[f"llm-{next(self._counter)}"] = _Collector(prompt, ids, params, self)
        self._run(collectors, pool=True)
        vectors = [collector.deltas[0][-1].embedding for collector in collectors.values()]
        size = self.core.ready.embedding_size
        return np.frombuffer(b"".join(filter(None, vectors)), np.float32).reshape(-1, size)

    def _run(self, collectors: dict[str, _Collector], pool: bool = False) -> None:
        """Runs requests until all have ended. If one fails, aborts all of them."""
        try:
            self._submit_and_step(collectors, pool)
        except BaseException:
            self._abort_all(collectors)
            raise

    def _submit_and_step(self, collectors: dict[str, _Collector], pool: bool) -> None:
        for request_id, c in collectors.items():
            message = self._validator.submission(request_id, c.prompt_ids, c.params, pool=pool)
            refused = self.core.submit(message)
            if refused is not None:
                raise as_error(refused)
        while self.core.has_work:
            with _defer_interrupts():
                outputs = self.core.step()
            for out in outputs:
                if out.error is not None:
                    raise as_error(out)
                c = collectors[out.request_id]
                if (delta := c.choices.take(out)) is None:
                    continue  # it ended with a stop string while this step was computed
                c.deltas[out.index].append(delta)
                if delta.finish_reason is not None and out.finish_reason is None:
                    self.core.abort(out.request_id, out.index)

    def _abort_all(self, collectors: dict[str, _Collector]) -> None:
        """Aborts requests and runs the pending steps, so that the next call starts clean."""
        for request_id in collectors:
            self.core.abort(request_id)
        while self.core.has_work:
            self.core.step()


def _several(prompts: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
    """The prompts as text or token ids, one or many."""
    one = isinstance(prompts, str | Mapping) or (
        len(prompts) > 0 and isinstance(prompts[0], int | np.integer)
    )
    return [_prompt(prompt) for prompt in ([prompts] if one else prompts)]


def _prompt(given: Any) -> Prompt:
    if not isinstance(given, Mapping):
        return given if isinstance(given, str) else list(given)
    found = [given[name] for name in ("prompt", "prompt_token_ids") if given.get(name) is not None]
    if len(found) != 1 or given.keys() - {"prompt", "prompt_token_ids"}:
        raise InvalidRequestError(
            'a prompt that is a mapping has "prompt" or "prompt_token_ids", and nothing else; it '
            f"had {', '.join(map(repr, given)) or 'nothing'}",
            "prompt",
        )
    return _prompt(found[0])


def _with_text(message: Message) -> dict[str, Any]:
    """A message whose content is text: parts are joined by line breaks, as the server does."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return dict(message)
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise InvalidRequestError(
                'the parts of a message\'s content must be {"type": "text", "text": ...}',
                "messages",
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}


@contextmanager
def _defer_interrupts() -> Iterator[None]:
    """Defers Ctrl-C until the step has ended: during one, the device state isn't valid."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    caught: list[tuple[int, FrameType | None]] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught and callable(before):
        before(*caught[0])

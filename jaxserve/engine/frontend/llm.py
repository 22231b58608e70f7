"""LLM: the offline API. It runs the engine's core in the caller's own process."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from tqdm import tqdm

import checkpoints
from jaxserve.config import DEFAULT_MODEL
from jaxserve.engine.core.protocol import Output, as_error
from jaxserve.engine.frontend.collector import Collector
from jaxserve.engine.frontend.output_processor import OutputProcessor
from jaxserve.engine.frontend.prompts import (
    Message,
    PromptInput,
    chat_prompt,
    engine_config,
    several,
)
from jaxserve.engine.frontend.request_validation import RequestValidator
from jaxserve.engine.frontend.sampling_defaults import sampling_defaults
from jaxserve.errors import ConfigError, InvalidRequestError
from jaxserve.outputs import RequestOutput
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import load_tokenizer

Bar = Callable[..., Any]
Lora = str | Sequence[str | None] | None


class _Request(Collector):
    """One request of this engine.

    Args:
        choices: makes deltas of the core's outputs.
        ended_ids: gets the request's id when it has ended or failed.
        adapter: its name; None is the base model.
    """

    def __init__(
        self, choices: OutputProcessor, ended_ids: list[str], adapter: str | None, *args: Any
    ) -> None:
        super().__init__(*args)
        self.choices, self.ended_ids, self.adapter = choices, ended_ids, adapter


class LLM:
    """Generates text with one model.

    Args:
        model: as EngineConfig.model.
        progress: show progress bars on stderr, where that is a terminal.
        settings: any other field of EngineConfig. max_queued_requests has no limit by default.

    Example:
        >>> llm = LLM("smollm2-135m")
        >>> done = llm.generate("The capital of France is", SamplingParams(temperature=0))
        >>> done[0].outputs[0].text
    """

    def __init__(
        self, model: str = DEFAULT_MODEL, *, progress: bool = True, **settings: Any
    ) -> None:
        self.config = engine_config(model, settings)
        # The one place where the front end runs the core in its own process, and so needs jax.
        from jaxserve.engine.core.engine_core import EngineCore

        path, tokenizer_path = checkpoints.pull_with_tokenizer(self.config)
        self.tokenizer = load_tokenizer(tokenizer_path)
        self._sampling_defaults = sampling_defaults(self.config, path)
        self.core = EngineCore(self.config, path, self.tokenizer, progress)
        ready = self.core.ready
        self._validator = RequestValidator(
            self.tokenizer, ready.max_model_len, ready.vocab_size, random.Random(self.config.seed)
        )
        self._ids, self._progress = itertools.count(), progress
        self._running: dict[str, _Request] = {}  # of all calls

    def default_sampling_params(self) -> SamplingParams:
        """The params of prompts that come without: those of the model's generation_config.json, and
        SamplingParams' defaults for the rest. Params that are given are used as they are."""
        return SamplingParams(**self._sampling_defaults)

    def get_tokenizer(self) -> Any:
        """The tokenizer, by the name that vLLM's LLM has for it."""
        return self.tokenizer

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Lora = None,
        use_tqdm: bool | Bar = True,
    ) -> list[RequestOutput]:
        """Completes prompts, one or many, in order. Each is text, token ids, or a mapping with one
        of them under "prompt" or "prompt_token_ids", as vLLM has it.

        Args:
            sampling_params: one for all, or one a prompt; None is default_sampling_params().
            lora: the name or the folder of an adapter, one for all, or one a prompt, where None is
                the base model. A folder is read at its first use; its files are not looked at
                again (load_lora() does).
            use_tqdm: show a progress bar, or the class of the bar (as tqdm.auto.tqdm).

        Raises:
            ModelError: an adapter can't be read.
            InvalidRequestError: a prompt or its params can't be served. No prompt was run, unless
                the cause is a grammar that doesn't compile.
            EngineError: the engine failed a request; the others are aborted.
        """
        requests = self._requests(prompts, sampling_params, lora)
        return sorted(self._finished(requests, use_tqdm), key=lambda output: output.index)

    def generate_each(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Lora = None,
        use_tqdm: bool | Bar = False,
    ) -> Iterator[RequestOutput]:
        """As generate(), but gives each request when it has finished; `index` is its prompt's
        place. Closing the iterator early aborts the rest."""
        return self._finished(self._requests(prompts, sampling_params, lora), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        lora: Lora = None,
        use_tqdm: bool | Bar = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **template: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, each a list of {"role", "content"} messages. Content
        is text, or parts of {"type": "text", "text": ...}.

        Args:
            lora: as of generate().
            chat_template_kwargs, template: arguments of the chat template.

        Raises:
            InvalidRequestError: the template doesn't use an argument, or refuses the messages; and
                as generate().
        """
        conversations: Any = (
            [messages] if messages and isinstance(messages[0], Mapping) else messages
        )
        arguments = {**(chat_template_kwargs or {}), **template}
        ids = [chat_prompt(self.tokenizer, m, arguments) for m in conversations]
        return self.generate(ids, sampling_params, lora=lora, use_tqdm=use_tqdm)

    def embed(
        self, prompts: PromptInput | Sequence[PromptInput], *, lora: Lora = None
    ) -> np.ndarray:
        """Embeddings [N, E] float32 of prompts, each the last hidden state of its last token, of
        length 1. `lora` and errors are as generate()'s."""
        params = SamplingParams(temperature=0, max_tokens=1)
        requests = self._requests(prompts, params, lora, generates=False)
        for _ in self._finished(requests, False, pool=True):
            pass
        vectors = [request.embedding for request in requests.values()]
        size = self.core.ready.embedding_size
        return np.frombuffer(b"".join(filter(None, vectors)), np.float32).reshape(-1, size)

    @property
    def loras(self) -> tuple[str, ...]:
        """Names of the adapters."""
        store = self.core.adapters
        return () if store is None else tuple(info.name for info in store.infos)

    def load_lora(self, name: str, folder: str) -> None:
        """Reads an adapter in PEFT's format, in place of the one that had the name.

        Raises:
            ModelError: it can't be read, or isn't one of this model's.
            ConfigError: the LLM was made without max_loras, lora or lora_folder.
        """
        if self.core.adapters is None:
            raise ConfigError("adapters need LLM(max_loras=...) or LLM(lora=...)")
        path = Path(folder)
        self.core.adapters.add(name, path, self.core.adapters.read(path).result())

    def unload_lora(self, name: str) -> None:
        """Takes an adapter's name away.

        Raises:
            InvalidRequestError: there is no such name.
        """
        if self.core.adapters is None:
            raise InvalidRequestError(f"there is no adapter {name!r}", "lora")
        self.core.adapters.remove(name)

    def _adapters(self, lora: Lora, count: int) -> list[str | None]:
        """The names of the adapters of so many prompts."""
        names = [lora] * count if lora is None or isinstance(lora, str) else list(lora)
        if len(names) != count:
            raise InvalidRequestError(
                f"{count} prompts came with {len(names)} adapters: give one, or one a prompt",
                "lora",
            )
        for name in dict.fromkeys(names):
            if name is not None and name not in self.loras and Path(name).is_dir():
                self.load_lora(name, name)
        return names

    def _requests(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        params: SamplingParams | Sequence[SamplingParams] | None,
        lora: Lora,
        generates: bool = True,
    ) -> dict[str, _Request]:
        """The requests of one call by their ids, all of them validated."""
        given = several(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or self.default_sampling_params()] * len(given)
        if len(params) != len(given):
            raise InvalidRequestError(
                f"{len(given)} prompts came with {len(params)} params: give one, or one a prompt"
            )
        requests: dict[str, _Request] = {}
        ended_ids: list[str] = []
        adapters = self._adapters(lora, len(given))
        for index, (prompt, own) in enumerate(zip(given, params, strict=True)):
            ids = self._validator.prompt_ids(prompt, own, generates=generates)
            choices = OutputProcessor(self.tokenizer, own, ids)
            text = prompt if isinstance(prompt, str) else None
            requests[str(next(self._ids))] = _Request(
                choices, ended_ids, adapters[index], self.tokenizer, index, text, ids, own
            )
        return requests

    def _finished(
        self, requests: dict[str, _Request], use_tqdm: bool | Bar, pool: bool = False
    ) -> Iterator[RequestOutput]:
        """Runs requests; gives each when it has finished. If one fails, or the iterator is closed,
        all of them are aborted."""
        bar = use_tqdm if callable(use_tqdm) else tqdm
        # None: on a terminal alone.
        hidden = None if callable(use_tqdm) or (use_tqdm and self._progress) else True
        with bar(total=len(requests), desc="Processed prompts", disable=hidden) as shown:
            try:
                self._submit(requests, pool)
                ended_ids = next(iter(requests.values())).ended_ids if requests else []
                for _ in requests:
                    while not ended_ids:
                        self._step()
                    request_id = ended_ids.pop(0)
                    if (error := requests[request_id].error) is not None:
                        raise error
                    shown.update()
                    yield requests[request_id].output(request_id)
            finally:
                self._abort(requests)

    def _submit(self, requests: dict[str, _Request], pool: bool) -> None:
        for request_id, request in requests.items():
            message = self._validator.submission(
                request_id,
                list(request.prompt_ids),
                request.params,
                pool=pool,
                adapter=request.adapter,
            )
            self._running[request_id] = request
            if (refused := self.core.submit(message)) is not None:
                raise as_error(refused)

    def _step(self) -> None:
        with _defer_interrupts():
            outputs = self.core.step()
        for out in outputs:
            if (request := self._running.get(out.request_id)) is not None:
                self._take(request, out)

    def _take(self, request: _Request, out: Output) -> None:
        if out.error is not None:
            request.error = as_error(out)
            self._end(request, out.request_id)
        elif (delta := request.choices.take(out)) is not None:
            # Without one, it ended with a stop string while this step was computed.
            request.add(delta, out.index)
            if delta.finish_reason is not None:
                if out.finish_reason is None:
                    self.core.abort(out.request_id, out.index)
                if request.ended:
                    self._end(request, out.request_id)

    def _end(self, request: _Request, request_id: str) -> None:
        del self._running[request_id]
        request.ended_ids.append(request_id)

    def _abort(self, requests: dict[str, _Request]) -> None:
        """Aborts those that haven't ended, and runs the pending steps, so that the next call starts
        clean."""
        left = [request_id for request_id in requests if request_id in self._running]
        for request_id in left:
            self.core.abort(request_id)
            del self._running[request_id]
        while left and not self._running and self.core.has_work:
            self.core.step()


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

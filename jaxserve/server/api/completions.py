"""POST /v1/completions."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from functools import partial

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api import generation
from jaxserve.server.api.generation import Batches, TokenCount
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.wire.answers import TextChoice, TextCompletion, TextLogprobs, Usage
from jaxserve.server.wire.logprobs_format import LogprobsWriter
from jaxserve.server.wire.requests import COMPLETION_UNSUPPORTED, CompletionRequest
from jaxserve.server.wire.sse import TextEvent, event
from jaxserve.server.wire.validation import parse, read_json


async def create_completion(request: web.Request) -> web.StreamResponse:
    serving = request.app[SERVING]
    body = parse(await read_json(request), CompletionRequest, COMPLETION_UNSUPPORTED)
    serving.check_model(body.model)
    body.check()
    params = serving.check_limits(body.to_sampling_params(serving.client.sampling_defaults))
    prompts = await generation.off_loop(request, tokenize, serving, body, params)
    batches = generation.submit(serving, prompts, params, **body.scheduling())
    if body.only_echo:
        batches = _without_output(batches)
    count = TokenCount(sum(map(len, prompts)))
    choices = _Choices(serving, body, prompts, params)
    if body.stream:
        chunks = _Chunks(serving, body, choices, count)
        usage_event = chunks.of_usage if body.include_usage else None
        last = generation.closing_events(usage_event, count)
        return await generation.stream(request, batches, chunks.of_delta, last, count)
    outputs = await generation.gather(batches, len(prompts) * params.n, count)
    if params.n > body.returned:
        outputs = generation.best(outputs, params.n, body.returned)
    answer = TextCompletion(
        **serving.header("cmpl"),
        object="text_completion",
        choices=list(map(choices.of_delta, outputs)),
        usage=count.usage(),
    )
    return generation.json_response(answer)


def tokenize(serving: Serving, body: CompletionRequest, params: SamplingParams) -> list[list[int]]:
    """The token ids of every prompt.

    Raises:
        InvalidRequestError: a prompt is empty, too long or has ids that the model lacks, or there
            are too many prompts.
    """
    prompts = body.prompts()
    most = serving.config.max_choices
    if len(prompts) * params.n > most:
        raise InvalidRequestError(
            f"prompt has {len(prompts)} prompts of {params.n} choices each; this server takes at "
            f"most {most} choices in a request",
            "prompt",
        )
    special = body.add_special_tokens is not False
    return [serving.client.prepare(prompt, params, special) for prompt in prompts]


async def _without_output(batches: Batches) -> Batches:
    """The prompts' news alone, as if nothing had been generated."""
    async with aclosing(batches):
        async for batch in batches:
            yield [
                replace(
                    delta,
                    text="",
                    token_ids=(),
                    logprobs=delta.logprobs and (),
                    finish_reason=delta.finish_reason and "length",
                    stop_reason=None,
                )
                for delta in batch
            ]


class _Choices:
    """Choices of one request, each whole or bit by bit."""

    def __init__(
        self,
        serving: Serving,
        body: CompletionRequest,
        prompts: list[list[int]],
        params: SamplingParams,
    ) -> None:
        self._body, self._prompts, self._n = body, prompts, params.n
        self._truncated = params.truncate_prompt_tokens is not None
        self._tokenizer = serving.client.tokenizer
        self._logprobs = LogprobsWriter(self._tokenizer, bool(body.return_tokens_as_token_ids))
        self._offsets: dict[int, int] = {}  # characters of the tokens so far, by choice

    def of_delta(self, delta: CompletionDelta) -> TextChoice:
        first = delta.index not in self._offsets
        offset = self._offsets.setdefault(delta.index, 0)
        own = list(delta.token_ids) if self._body.return_token_ids else msgspec.UNSET
        choice = TextChoice(
            delta.index, delta.text, delta.finish_reason, delta.stop_reason, token_ids=own
        )
        before: TextLogprobs | None = None
        if first:
            before = self._add_prompt(choice, delta)
            offset = self._offsets[delta.index]
        logprobs = self._logprobs.text(delta.logprobs, self._body.logprobs, offset)
        if logprobs:
            self._offsets[delta.index] += self._logprobs.length(delta.logprobs or ())
        choice.logprobs = _joined(before, logprobs)
        return choice

    def _add_prompt(self, choice: TextChoice, delta: CompletionDelta) -> TextLogprobs | None:
        """Puts in what a choice tells of its prompt; returns the logprobs of an echoed one."""
        place, asked = choice.index // self._n, self._body.logprobs
        ids, logprobs = self._prompts[place], None
        if self._body.return_token_ids:
            choice.prompt_token_ids = ids
        if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            choice.prompt_logprobs = self._logprobs.prompt(delta.prompt_logprobs)
        if self._body.echo:
            prompt = self._body.prompts()[place]
            if not isinstance(prompt, str) or self._truncated:
                prompt = self._tokenizer.decode(ids)
            choice.text = prompt + choice.text
            if asked is not None and delta.prompt_logprobs is not None:
                logprobs, length = self._logprobs.prompt_text(ids, delta.prompt_logprobs, asked)
                self._offsets[choice.index] = length
        return logprobs


def _joined(first: TextLogprobs | None, second: TextLogprobs | None) -> TextLogprobs | None:
    if first is None or second is None:
        return first or second
    top = None
    if first.top_logprobs is not None and second.top_logprobs is not None:
        top = first.top_logprobs + second.top_logprobs
    return TextLogprobs(
        first.text_offset + second.text_offset,
        first.token_logprobs + second.token_logprobs,
        first.tokens + second.tokens,
        top,
    )


class _Chunks:
    """Chunks of one streamed completion: text as it comes, one finish reason a choice."""

    def __init__(
        self, serving: Serving, body: CompletionRequest, choices: _Choices, count: TokenCount
    ) -> None:
        self._choices = choices
        self._usage = generation.chunk_usage(body, count)
        self._chunk = partial(TextCompletion, **serving.header("cmpl"), object="text_completion")
        ids_or_counts = body.return_token_ids or body.continuous_usage
        self._tells_more = bool(body.echo or ids_or_counts or body.logprobs is not None)
        self._plain: dict[int, TextEvent] = {}

    def of_delta(self, delta: CompletionDelta) -> list[bytes]:
        if self._tells_more or delta.finish_reason:
            choice = self._choices.of_delta(delta)
            tells = choice.text or choice.finish_reason or choice.logprobs or choice.token_ids
            return [event(self._chunk(choices=[choice], usage=self._usage()))] if tells else []
        if not delta.text:
            return []
        if (plain := self._plain.get(delta.index)) is None:
            chunk = self._chunk(choices=[TextChoice(delta.index, "")], usage=self._usage())
            plain = self._plain[delta.index] = TextEvent(chunk, "text")
        return [plain(delta.text)]

    def of_usage(self, usage: Usage) -> bytes:
        return event(self._chunk(choices=[], usage=usage))

"""POST /v1/completions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server.api.shared import generation
from jaxserve.server.api.shared.generation import DeltaBatches
from jaxserve.server.api.shared.json_body import json_response, read_body, run_off_loop
from jaxserve.server.api.shared.logprobs_writer import ChoiceLogprobs, LogprobsWriter
from jaxserve.server.context import SERVER_CONTEXT, ServerContext
from jaxserve.server.wire.completions.request import (
    COMPLETION_UNSUPPORTED,
    DEFAULT_MAX_TOKENS,
    CompletionRequest,
)
from jaxserve.server.wire.completions.response import Completion, CompletionChoice
from jaxserve.server.wire.logprobs import PromptLogprobsBody, TextLogprobs
from jaxserve.server.wire.response_fields import TokenCount
from jaxserve.server.wire.sse import TextEvent, event

# Logprobs of prompt tokens in one response, over all choices: some 25 MB of JSON.
MAX_PROMPT_LOGPROBS = 500_000
LONG_PROMPT = 256  # tokens, from which logprobs are written in a thread


async def create_completion(request: web.Request) -> web.StreamResponse:
    context = request.app[SERVER_CONTEXT]
    body = await read_body(request, CompletionRequest, COMPLETION_UNSUPPORTED)
    context.check_model(body.model)
    body.check()
    with body.naming_errors():
        params = context.check_limits(body.to_sampling_params(context.client.sampling_defaults))
        prompts = await run_off_loop(request, tokenize, context, body, params)
    _check_echo_size(body, prompts, params)
    echoes = bool(body.echo) and not body.only_echo
    batches = generation.submit(
        context,
        prompts,
        params,
        body,
        **body.scheduling(),
        echoes_prompt=echoes,
        default_max_tokens=context.default_max_tokens(DEFAULT_MAX_TOKENS),
        adapter=context.adapter(body.model),
    )
    if body.only_echo:
        batches = _without_output(batches)
    count = TokenCount(sum(map(len, prompts)))
    writer = _ChoiceWriter(context, body, prompts, params)
    batches = _with_prompts_written(batches, writer)
    if body.stream:
        events = _EventWriter(context, body, writer, count)
        last = generation.closing_events(events.usage_event if body.include_usage else None)
        return await generation.stream(request, batches, events.of_delta, last, count)
    outputs = await generation.gather(batches, len(prompts) * params.n, count)
    if params.n > body.returned_choices:
        outputs = generation.best_choices(outputs, params.n, body.returned_choices)
    response = Completion(
        **context.response_header("cmpl", body.model),
        object="text_completion",
        choices=list(map(writer.choice, outputs)),
        usage=count.usage(),
    )
    return json_response(response)


def tokenize(
    context: ServerContext, body: CompletionRequest, params: SamplingParams
) -> list[list[int]]:
    """The token ids of every prompt.

    Raises:
        InvalidRequestError: a prompt is empty, is too long or has ids outside the vocabulary, or
            there are too many prompts.
    """
    prompts = body.prompts()
    limit = context.config.max_choices
    if len(prompts) * params.n > limit:
        raise InvalidRequestError(
            f"prompt has {len(prompts)} prompts of {params.n} choices each; this server "
            f"allows at most {limit} choices in a request",
            "prompt",
        )
    special = body.add_special_tokens is not False
    generates = not body.only_echo
    default = context.default_max_tokens(DEFAULT_MAX_TOKENS)
    return [
        context.client.prepare(prompt, params, special, generates, default) for prompt in prompts
    ]


def _check_echo_size(
    body: CompletionRequest, prompts: list[list[int]], params: SamplingParams
) -> None:
    """Bounds a response that has the logprobs of its prompts with every choice.

    Raises:
        InvalidRequestError: there are more than MAX_PROMPT_LOGPROBS.
    """
    if params.prompt_logprobs is None:
        return
    entries = sum(map(len, prompts)) * params.n * (params.prompt_logprobs + 1)
    if entries > MAX_PROMPT_LOGPROBS:
        raise InvalidRequestError(
            f"the response would hold {entries} logprobs of prompt tokens, and at most "
            f"{MAX_PROMPT_LOGPROBS} are sent: ask for fewer choices, fewer logprobs or a shorter "
            "prompt",
            "logprobs" if body.echo else "prompt_logprobs",
        )


async def _with_prompts_written(batches: DeltaBatches, writer: _ChoiceWriter) -> DeltaBatches:
    """The same deltas; what they say of long prompts is written in a thread before they come."""
    async with aclosing(batches):
        async for batch in batches:
            for delta in batch:
                if delta.prompt_logprobs is not None and len(delta.prompt_logprobs) > LONG_PROMPT:
                    await asyncio.to_thread(writer.write_prompt, delta)
            yield batch


async def _without_output(batches: DeltaBatches) -> DeltaBatches:
    """The deltas without what was generated, for a request that only echoes its prompts."""
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


@dataclass(slots=True)
class _WrittenPrompt:
    """What a response says of one prompt.

    Args:
        text: the prompt, if it is echoed.
        logprobs: of its tokens, in the form of `logprobs`, if it is echoed with them.
        prompt_logprobs: in the form of `prompt_logprobs`, if they are asked for.
    """

    text: str = ""
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobsBody | None = None


class _ChoiceWriter:
    """Writes the choices of one request, each from one delta or from several."""

    def __init__(
        self,
        context: ServerContext,
        body: CompletionRequest,
        prompts: list[list[int]],
        params: SamplingParams,
    ) -> None:
        self._body, self._prompts, self._params = body, prompts, params
        self._returned = min(params.n, body.returned_choices)  # choices of each prompt
        self._tokenizer = context.client.tokenizer
        self._logprobs = LogprobsWriter(
            self._tokenizer, params.skip_special_tokens, bool(body.return_tokens_as_token_ids)
        )
        self._written: dict[int, _WrittenPrompt] = {}  # by the prompt's place
        self._choices: dict[int, ChoiceLogprobs] = {}  # by the choice's index

    def choice(self, delta: CompletionDelta) -> CompletionChoice:
        token_ids = list(delta.token_ids) if self._body.return_token_ids else msgspec.UNSET
        choice = CompletionChoice(
            delta.index, delta.text, delta.finish_reason, delta.stop_reason, token_ids=token_ids
        )
        prompt_logprobs: TextLogprobs | None = None
        if delta.index not in self._choices:
            prompt_logprobs = self._add_prompt(choice, delta)
        logprobs = self._choices[delta.index].text(delta.logprobs, self._body.logprobs)
        choice.logprobs = _joined(prompt_logprobs, logprobs)
        return choice

    def _add_prompt(self, choice: CompletionChoice, delta: CompletionDelta) -> TextLogprobs | None:
        """Adds the fields about the prompt; returns the prompt's logprobs if it is echoed."""
        place = choice.index // self._returned
        ids, written = self._prompts[place], self._write_prompt(place, delta)
        if self._body.return_token_ids:
            choice.prompt_token_ids = ids
        if written.prompt_logprobs is not None:
            choice.prompt_logprobs = written.prompt_logprobs
        choice.text = written.text + choice.text
        self._choices[choice.index] = self._logprobs.choice(
            ids, len(written.text), bool(self._body.echo)
        )
        return written.logprobs

    def write_prompt(self, delta: CompletionDelta) -> None:
        """Makes the fields about the prompt of the engine's delta, once for all its choices. This
        can be called in any thread."""
        self._write_prompt(delta.index // self._params.n, delta)

    def _write_prompt(self, place: int, delta: CompletionDelta) -> _WrittenPrompt:
        if (written := self._written.get(place)) is None:
            written = self._written[place] = self._make_prompt(place, delta)
        return written

    def _make_prompt(self, place: int, delta: CompletionDelta) -> _WrittenPrompt:
        written, ids, num_top = _WrittenPrompt(), self._prompts[place], self._body.logprobs
        if self._body.prompt_logprobs is not None and delta.prompt_logprobs is not None:
            written.prompt_logprobs = self._logprobs.prompt(ids, delta.prompt_logprobs)
        if not self._body.echo:
            return written
        written.text = self._echoed(place)
        if num_top is not None and delta.prompt_logprobs is not None:
            written.logprobs = self._logprobs.prompt_text(
                ids, delta.prompt_logprobs, num_top, written.text
            )
        return written

    def _echoed(self, place: int) -> str:
        """A prompt's text: as it was sent, if it was."""
        prompt, ids = self._body.prompts()[place], self._prompts[place]
        if isinstance(prompt, str) and self._params.truncate_prompt_tokens is None:
            return prompt
        decode = self._tokenizer.decode if self._body.only_echo else self._tokenizer.decode_echo
        return decode(ids, self._params.skip_special_tokens)


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


class _EventWriter:
    """Writes the events of a streamed completion; a choice's last event has its finish reason."""

    def __init__(
        self,
        context: ServerContext,
        body: CompletionRequest,
        writer: _ChoiceWriter,
        count: TokenCount,
    ) -> None:
        self._writer, self._count = writer, count
        self._usage = generation.chunk_usage(body, count)
        self._chunk = partial(
            Completion, **context.response_header("cmpl", body.model), object="text_completion"
        )
        ids_or_counts = body.return_token_ids or body.continuous_usage
        self._more_than_text = bool(body.echo or ids_or_counts or body.logprobs is not None)
        self._text_events: dict[int, TextEvent] = {}

    def of_delta(self, delta: CompletionDelta) -> list[bytes]:
        if self._more_than_text or delta.finish_reason:
            choice = self._writer.choice(delta)
            adds = choice.text or choice.finish_reason or choice.logprobs or choice.token_ids
            return [event(self._chunk(choices=[choice], usage=self._usage()))] if adds else []
        if not delta.text:
            return []
        if (text_event := self._text_events.get(delta.index)) is None:
            chunk = self._chunk(choices=[CompletionChoice(delta.index, "")], usage=self._usage())
            text_event = self._text_events[delta.index] = TextEvent(chunk, "text")
        return [text_event(delta.text)]

    async def usage_event(self) -> bytes:
        return event(self._chunk(choices=[], usage=self._count.usage()))

"""POST /v1/completions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams
from jaxserve.server import generation
from jaxserve.server.bodies import parse, read_json
from jaxserve.server.context import SERVING, Serving
from jaxserve.server.logprobs import text_logprobs
from jaxserve.server.requests import COMPLETION_UNSUPPORTED, CompletionRequest
from jaxserve.server.responses import TextChoice, TextCompletion, Usage


async def create_completion(request: web.Request) -> web.StreamResponse:
    serving = request.app[SERVING]
    body = parse(await read_json(request), CompletionRequest, COMPLETION_UNSUPPORTED)
    serving.check_model(body.model)
    body.check_stream_options()
    params = serving.check_limits(body.to_sampling_params())
    prompts = await generation.off_loop(request, tokenize, serving, body, params)
    deltas = generation.generate(serving.client, prompts, params)
    if body.stream:
        chunks = _Chunks(serving, body)
        return await generation.stream(
            request,
            deltas,
            chunks.of_delta,
            chunks.of_usage if body.include_usage else None,
            sum(map(len, prompts)),
        )
    outputs = await generation.gather(deltas, len(prompts) * params.n)
    usage = generation.count_usage(prompts, outputs)
    if params.n > body.returned:
        outputs = generation.best(outputs, params.n, body.returned)
    tokenizer = serving.client.tokenizer
    answer = TextCompletion(
        **serving.header("cmpl"),
        object="text_completion",
        choices=[
            TextChoice(
                o.index,
                o.text,
                o.finish_reason,
                o.stop_reason,
                text_logprobs(tokenizer, o.logprobs, body.logprobs, 0),
            )
            for o in outputs
        ],
        usage=usage,
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
    if body.add_special_tokens is False:
        encode = partial(serving.client.tokenizer.encode, add_special_tokens=False)
        prompts = [encode(p) if isinstance(p, str) else p for p in prompts]
    return [serving.client.prepare(prompt, params) for prompt in prompts]


class _Chunks:
    """Chunks of one streamed completion: text as it comes, one finish reason a choice."""

    def __init__(self, serving: Serving, body: CompletionRequest) -> None:
        self._tokenizer, self._asked = serving.client.tokenizer, body.logprobs
        self._offsets: Counter[int] = Counter()  # characters of the tokens so far, by choice
        header = serving.header("cmpl")
        self._chunk = partial(
            TextCompletion,
            **header,
            object="text_completion",
            usage=None if body.include_usage else msgspec.UNSET,
        )

    def of_delta(self, delta: CompletionDelta) -> Iterator[TextCompletion]:
        offset = self._offsets[delta.index]
        logprobs = text_logprobs(self._tokenizer, delta.logprobs, self._asked, offset)
        if logprobs:
            self._offsets[delta.index] += sum(map(len, logprobs.tokens))
        if delta.text or delta.finish_reason or logprobs:
            choice = TextChoice(
                delta.index, delta.text, delta.finish_reason, delta.stop_reason, logprobs
            )
            yield self._chunk(choices=[choice])

    def of_usage(self, usage: Usage) -> TextCompletion:
        return self._chunk(choices=[], usage=usage)

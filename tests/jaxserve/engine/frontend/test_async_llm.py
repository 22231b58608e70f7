"""AsyncLLM on the tiny Llama: the same tokens as LLM, streamed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from jaxserve import AsyncLLM, RequestOutput, SamplingParams
from jaxserve.engine.frontend.llm import LLM
from jaxserve.errors import InvalidRequestError


def greedy(max_tokens: int, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **settings)


async def test_it_streams_what_llm_returns(
    tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any], prompts: list[list[int]]
) -> None:
    expected = llm.generate(prompts, greedy(12, logprobs=1))
    chat = llm.chat([{"role": "user", "content": "hi"}], greedy(5))[0]

    async with AsyncLLM(str(tiny_llama), **llm_settings) as streaming:

        async def outputs(prompt: Any) -> list[RequestOutput]:
            return [o async for o in streaming.generate(prompt, greedy(12, logprobs=1))]

        together = await asyncio.gather(*(outputs({"prompt_token_ids": p}) for p in prompts))
        for several, whole in zip(together, expected, strict=True):
            last = several[-1]
            assert last.finished
            assert [o.finished for o in several[:-1]] == [False] * (len(several) - 1)
            assert last.outputs[0].token_ids == whole.outputs[0].token_ids
            assert last.outputs[0].text == whole.outputs[0].text
            assert len(last.outputs[0].logprobs or ()) == 12
            for earlier, later in itertools.pairwise(several):
                assert later.outputs[0].text.startswith(earlier.outputs[0].text)
        answers = streaming.chat([{"role": "user", "content": "hi"}], greedy(5), "mine")
        *_, answer = [output async for output in answers]
        assert (answer.request_id, answer.outputs[0].text) == ("mine", chat.outputs[0].text)
        with pytest.raises(InvalidRequestError):
            await anext(streaming.generate("", greedy(5)))
        left = streaming.generate(prompts[0], greedy(30))
        await anext(left)
        await left.aclose()
    with pytest.raises(RuntimeError, match="async with"):
        streaming.default_sampling_params()

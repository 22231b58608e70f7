"""The offline engine on a tiny random Llama: tokens as transformers gives them, under any load."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.config import EngineConfig
from jaxserve.engine.core.protocol import Output
from jaxserve.engine.frontend.llm import LLM
from jaxserve.errors import ConfigError, InvalidRequestError
from jaxserve.outputs import PositionLogprobs
from jaxserve.sampling.params import BeamSearchParams, SamplingParams, StructuredOutputsParams

LogprobsOf = Sequence[PositionLogprobs | None] | None


def greedy(max_tokens: int = 32, **settings: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **settings)


def tokens(llm: LLM, prompts: list[list[int]], params: Any) -> list[tuple[int, ...]]:
    return [done.outputs[0].token_ids for done in llm.generate(prompts, params)]


def assert_alike(some: LogprobsOf, others: LogprobsOf) -> None:
    """Except for the last bits, which depend on the step's size for so narrow a model."""
    assert (some is None) == (others is None)
    for one, other in zip(some or (), others or (), strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-4)


def test_greedy_tokens_are_those_of_transformers(
    llm: LLM, prompts: list[list[int]], tiny_llama_golden: dict[str, Any]
) -> None:
    expected = [tuple(tiny_llama_golden[f"greedy_{i}"].tolist()) for i in range(len(prompts))]
    assert tokens(llm, prompts, greedy()) == expected


def test_a_seeded_request_draws_the_same_alone_and_in_a_batch(
    llm: LLM, prompts: list[list[int]]
) -> None:
    several = [prompts[i % len(prompts)] for i in range(20)]
    params = [
        SamplingParams(temperature=1.0, top_p=0.95, seed=i, max_tokens=5 + i, ignore_eos=True)
        for i in range(20)
    ]
    together = tokens(llm, several, params)
    alone = [tokens(llm, [p], s)[0] for p, s in zip(several, params, strict=True)]
    assert together == alone
    assert len(set(together)) > 15


def test_overlap_and_the_plain_loop_give_the_same(
    tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any], prompts: list[list[int]]
) -> None:
    plain = LLM(str(tiny_llama), progress=False, overlap=False, **llm_settings)
    regex = StructuredOutputsParams(regex="[a-c]{3,9}(x|y)*")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    json = StructuredOutputsParams(json=schema)
    params = [
        greedy(logprobs=5),
        greedy(bad_words=("A", "BC"), logprobs=1, prompt_logprobs=2),
        SamplingParams(seed=3, max_tokens=32, structured_outputs=regex, n=2, logprobs=3),
        SamplingParams(seed=4, max_tokens=32, bad_words=("ab",), repetition_penalty=1.2),
        greedy(9, min_tokens=4, stop_token_ids=tuple(range(0, 259, 3))),
        SamplingParams(
            seed=5, max_tokens=24, structured_outputs=json, presence_penalty=1.0, logprobs=0
        ),
        SamplingParams(
            seed=6, temperature=0.7, max_tokens=25, top_k=20, typical_p=0.9, prompt_logprobs=1
        ),
    ]
    # More than the rows there are, so that some wait and join steps of others.
    params *= 2
    several = [prompts[i % 3] for i in range(len(params))]
    ours, theirs = plain.generate(several, params), llm.generate(several, params)
    plain.core.close()
    for one, other in zip(ours, theirs, strict=True):
        assert_alike(one.prompt_logprobs, other.prompt_logprobs)
        for a, b in zip(one.outputs, other.outputs, strict=True):
            assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
            assert_alike(a.logprobs, b.logprobs)


@pytest.mark.slow
def test_a_pool_too_small_for_all_preempts_and_changes_nothing(
    tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any], prompts: list[list[int]]
) -> None:
    several = [prompts[i % len(prompts)] for i in range(12)]
    expected = tokens(llm, several, greedy(24))
    bytes_a_block = 2**20 // llm.core.ready.num_blocks
    settings = {**llm_settings, "kv_cache_memory": 12 * bytes_a_block}
    small = LLM(str(tiny_llama), progress=False, **settings)
    assert tokens(small, several, greedy(24)) == expected
    assert small.core.stats.preemptions > 0
    small.core.close()


def test_a_warm_prefix_cache_changes_nothing(llm: LLM, prompts: list[list[int]]) -> None:
    prompt = max(prompts, key=len)
    assert tokens(llm, [prompt], greedy()) == tokens(llm, [prompt], greedy())


def test_stop_ids_and_strings_end_the_text(llm: LLM, prompts: list[list[int]]) -> None:
    whole = llm.generate(prompts[0], greedy())[0].outputs[0]
    stop_id = whole.token_ids[5]
    cut = llm.generate(prompts[0], greedy(stop_token_ids=(stop_id,)))[0].outputs[0]
    first = whole.token_ids.index(stop_id)
    assert cut.token_ids == whole.token_ids[: first + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop_id)
    stop_text = whole.text[3:5]
    cut = llm.generate(prompts[0], greedy(stop=(stop_text,)))[0].outputs[0]
    assert cut.text == whole.text[: whole.text.index(stop_text)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop_text)


def test_max_tokens_none_runs_to_the_context_limit(llm: LLM) -> None:
    limit = llm.core.ready.max_model_len
    prompt = [65] * (limit - 3)
    done = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    assert len(done.outputs[0].token_ids) == 3
    assert done.outputs[0].finish_reason == "length"


def test_an_interrupted_call_leaves_the_engine_whole(
    llm: LLM, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(llm, prompts, greedy())
    step, turns = llm.core.step, itertools.count()

    def interrupted_in_the_third() -> list[Output]:
        if next(turns) == 2:
            signal.raise_signal(signal.SIGINT)
        return step()

    # A test run in the background of a shell ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(llm.core, "step", interrupted_in_the_third)
            with pytest.raises(KeyboardInterrupt):
                llm.generate(prompts, greedy())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not llm.core.has_work
    assert llm.core.stats.blocks_used == 0
    assert tokens(llm, prompts, greedy()) == expected


def test_a_text_too_long_for_any_tokens_is_refused_unread(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="characters"):
        llm.generate("x" * 10_000_000, greedy())


def test_chat_uses_the_template(llm: LLM) -> None:
    done = llm.chat([{"role": "user", "content": "hi"}], greedy(2))[0]
    text = llm.tokenizer.decode(list(done.prompt_token_ids), skip_special_tokens=False)
    assert text == "<s>user: hi\nassistant: "


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "empty"),
        ([], "empty"),
        ([272], "272"),
        ([-1], "-1"),
        ([65.0], "token ids"),
        ([65] * 100_000, "maximum context length"),
    ],
)
def test_bad_prompts_are_refused_before_anything_runs(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate([prompt], greedy())
    assert not llm.core.has_work


def test_a_pool_without_a_block_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="kv_cache_memory"):
        LLM(str(tiny_llama), progress=False, kv_cache_memory=100)


def test_unknown_settings_are_refused(tiny_llama: Path) -> None:
    with pytest.raises(TypeError, match="no setting max_len"):
        LLM(str(tiny_llama), max_len=5)


@pytest.mark.parametrize("prompts", [None, 5, b"abc", [b"abc"], [None], [5.0], [{"prompt": b"a"}]])
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequestError, match="token ids"):
        llm.generate(prompts)


def test_a_beam_search_ignores_nothing_silently(llm: LLM, prompts: list[list[int]]) -> None:
    beams = BeamSearchParams(2)
    for temperature in (0, 1):
        params = SamplingParams(max_tokens=2, beam_search=beams, temperature=temperature)
        assert len(llm.generate(prompts[:1], params)[0].outputs) == 1
    with pytest.raises(InvalidRequestError, match="temperature"):
        SamplingParams(beam_search=beams, temperature=0.7)
    with pytest.raises(InvalidRequestError, match="seed"):
        llm.generate(prompts[:1], SamplingParams(max_tokens=2, beam_search=beams, seed=3))


def test_more_prompts_than_a_server_would_queue_are_taken(llm: LLM) -> None:
    most = EngineConfig().max_queued_requests
    done = llm.generate([[65]] * (most + 20), greedy(1))
    assert len({output.outputs[0].token_ids for output in done}) == 1
    assert len(done) == most + 20


def test_prompts_in_all_forms(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    ids = prompts[1]
    (expected,) = llm.generate(ids, params)
    forms: list[Any] = [
        [np.array(ids)],
        np.array(ids),
        [tuple(ids)],
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": np.array(ids)}],
    ]
    for form in forms:
        (output,) = llm.generate(form, params)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    texts = llm.generate(["ab", {"prompt": "ab"}], params)
    assert texts[0].outputs[0].token_ids == texts[1].outputs[0].token_ids
    for wrong in ({}, {"prompt": "a", "prompt_token_ids": [1]}, {"prompt": "a", "image": 1}):
        with pytest.raises(InvalidRequestError, match="mapping"):
            llm.generate([wrong], params)
    assert llm.embed([]).shape == (0, llm.embed(["ab"]).shape[1])


def test_content_in_parts_and_arguments_without_effect(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=2)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (whole,) = llm.chat([{"role": "user", "content": "a\nb"}], params)
    (joined,) = llm.chat([{"role": "user", "content": parts}], params)
    assert joined.prompt_token_ids == whole.prompt_token_ids
    with pytest.raises(InvalidRequestError, match="text"):
        llm.chat([{"role": "user", "content": [{"type": "image_url"}]}], params)
    with pytest.raises(InvalidRequestError, match="doesn't use nonsense"):
        llm.chat([{"role": "user", "content": "a"}], params, nonsense=True)


def test_logprobs_are_found_by_token_id(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=1, seed=7, max_tokens=6, logprobs=2, prompt_logprobs=1)
    (done,) = llm.generate(prompts[0], sampling_params=params)
    output = done.outputs[0]
    assert output.logprobs is not None
    for token, position in zip(output.token_ids, output.logprobs, strict=True):
        assert position.token_id == next(iter(position)) == token
        assert position[token].logprob == position.logprob
        assert {t for t, _ in position.top} <= position.keys()
        assert position[position.top[0][0]].rank == 1
        text = llm.tokenizer.decode([token], skip_special_tokens=False)
        assert position[token].decoded_token == text  # each token is a byte
    assert done.prompt_logprobs is not None
    assert done.prompt_logprobs[0] is None
    for token, entry in zip(prompts[0][1:], done.prompt_logprobs[1:], strict=True):
        assert entry is not None
        assert entry[token].logprob <= 0


def test_requests_come_as_they_finish_and_may_be_left(llm: LLM, prompts: list[list[int]]) -> None:
    params = [greedy(24), greedy(3), greedy(12)]
    expected = {i: o.outputs[0].token_ids for i, o in enumerate(llm.generate(prompts, params))}
    done = list(llm.generate_each(prompts, params))
    assert [output.index for output in done] == [1, 2, 0]
    assert {output.index: output.outputs[0].token_ids for output in done} == expected
    some = llm.generate_each(prompts, params)
    assert next(some).index == 1
    # Another call in between takes nothing from those that wait.
    assert tokens(llm, prompts[:1], greedy(24)) == [expected[0]]
    assert next(some).outputs[0].token_ids == expected[2]
    some.close()  # type: ignore[attr-defined]
    assert not llm.core.has_work
    assert llm.core.stats.blocks_used == 0


def test_the_progress_bar_counts_requests(llm: LLM, prompts: list[list[int]]) -> None:
    shown: list[int] = []

    class Bar:
        def __init__(self, total: int, **settings: Any) -> None:
            shown.append(total)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *error: object) -> None: ...

        def update(self) -> None:
            shown.append(1)

    llm.generate(prompts, greedy(2), use_tqdm=Bar)
    assert shown == [len(prompts)] + [1] * len(prompts)

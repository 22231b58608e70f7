"""LLM on a vocabulary of sentencepiece: prompt and text are the text of all ids, and outputs end
where turns end."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams

THE = 292  # the piece "\u2581the"
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{% if m.role == 'assistant' %}<|over|>{% endif %}{% endfor %}"
)


@pytest.fixture(scope="module")
def spm(
    spm_llama: Path, llm_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LLM]:
    """The model whose pieces 3 and 4 are the special tokens <|im_end|> and <|over|>; its files name
    </s> alone as an end, and its template writes <|over|>."""
    folder = tmp_path_factory.mktemp("ends") / "model"
    shutil.copytree(spm_llama, folder)
    special = {"lstrip": False, "rstrip": False, "normalized": False, "special": True}
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {
            "3": {"content": "<|im_end|>", **special},
            "4": {"content": "<|over|>", **special},
        },
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    llm = LLM(str(folder), progress=False, **llm_settings)
    yield llm
    llm.core.close()


def texts(llm: LLM, prompts: Sequence[Any], **params: Any) -> list[str]:
    done = llm.generate(list(prompts), SamplingParams(**params))
    return [output.outputs[0].text for output in done]


def test_a_word_after_a_prompt_has_its_space(spm: LLM) -> None:
    asked = {"temperature": 0, "max_tokens": 2, "allowed_token_ids": (THE,)}
    prompts = ["the quick", [1, THE], "", [1], [THE]]
    assert texts(spm, prompts, **asked) == [
        " the the",
        " the the",
        "the the",
        "the the",
        " the the",
    ]


def test_prompt_and_text_are_the_text_of_all_ids(spm: LLM, spm_llama: Path) -> None:
    """Bytes of characters among them, some of which continue the prompt's."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(spm_llama / "tokenizer.model"))
    prompts = ["the quick 東", "a 🚀", [1, 607, 235], [1, 235, 162], [250], [THE, 607]]
    for seed in range(6):
        params = SamplingParams(
            temperature=2.0,
            seed=seed,
            max_tokens=12,
            ignore_eos=True,
            allowed_token_ids=tuple(range(5, 650)) if seed % 2 else (231, 162, 182, 240, THE),
        )
        for done in spm.generate(prompts, params):
            output = done.outputs[0]
            before = model.decode([i for i in done.prompt_token_ids if i > 4])
            whole = model.decode([i for i in done.prompt_token_ids + output.token_ids if i > 4])
            while not whole.startswith(before):  # the output completes a character of the prompt
                assert before.endswith("\ufffd")
                before = before[:-1]
            assert before + output.text == whole


@pytest.mark.parametrize("end", [2, 3, 4])
def test_every_end_of_a_turn_ends_an_output(spm: LLM, end: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logit_bias={end: 100.0})
    (done,) = spm.chat([{"role": "user", "content": "the"}], params)
    output = done.outputs[0]
    assert (output.token_ids, output.text) == ((end,), "")
    assert (output.finish_reason, output.stop_reason) == ("stop", None)


def test_a_grammar_s_text_is_the_output(spm: LLM) -> None:
    wanted = ("a the the", "the 東🚀", " the")
    for choice in wanted:
        params = {"structured_outputs": StructuredOutputsParams(choice=(choice,))}
        assert texts(spm, ["x"], temperature=0, max_tokens=40, **params) == [choice]

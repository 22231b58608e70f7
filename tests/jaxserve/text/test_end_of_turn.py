"""Tokens that end a turn, whatever a model's files name."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxserve.text.chat_template import ChatTemplate
from jaxserve.text.huggingface_vocabulary import HuggingFaceVocabulary
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

LETTERS = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
START = "{% for m in messages %}{{ '<|start|>' + m.role }}\n"


def tokenizer(
    added: Sequence[str], template: str = "", eos: tuple[int, ...] = (), pieces: Sequence[str] = ()
) -> Tokenizer:
    """Of bytes; the added tokens have the ids from 256 on."""
    vocabulary = LETTERS | {piece: 256 + i for i, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(added))
    sources = {"default": template} if template else {}
    return Tokenizer(HuggingFaceVocabulary(backend), ChatTemplate(sources, {}), None, eos)


@pytest.mark.parametrize(
    "name", ["<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "</s>", "<|endoftext|>"]
)
def test_a_well_known_token_ends_a_turn(name: str) -> None:
    assert tokenizer(["<s>", name]).eos_token_ids == (257,)
    assert tokenizer(["<s>", name], eos=(256,)).eos_token_ids == (256, 257)
    assert tokenizer(["<s>"]).eos_token_ids == ()
    assert tokenizer([], pieces=[name]).eos_token_ids == ()  # a piece of usual text


def test_messages_of_gpt_oss_end_without_ending_the_turn() -> None:
    """<|end|> ends the turns of Phi-3, but only messages within those of gpt-oss."""
    assert tokenizer(["<|end|>", "<|return|>", "<|call|>"]).eos_token_ids == (257, 258)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (START + "{{ m.content }}<|over|>\n{% endfor %}", (257,)),
        (START + "{{ m.content }}\n <|over|>{% endfor %}", (257,)),
        (START + "{% for p in m.content %}{{ p.text }}{% endfor %}<|over|>{% endfor %}", (257,)),
        # <|start|> begins the next message.
        (START + "{{ m.content }}{% endfor %}", ()),
        (START + "{{ m.content }}\n{% endfor %}the end<|over|>", ()),
        (START + "{% if m.role == 'user' %}{{ m.content }}<|over|>{% endif %}{% endfor %}", ()),
        ("{{ raise_exception('no') }}", ()),
        ("{% for %}", ()),
    ],
)
def test_the_token_after_an_assistant_s_message_ends_a_turn(
    template: str, ends: tuple[int, ...]
) -> None:
    assert tokenizer(["<|start|>", "<|over|>"], template).eos_token_ids == ends


def test_another_template_brings_its_own_end() -> None:
    with_template = tokenizer(["<|a|>", "<|b|>"], START + "{{ m.content }}<|a|>{% endfor %}")
    assert with_template.eos_token_ids == (256,)
    with_template.use_chat_template(START + "{{ m.content }}<|b|>{% endfor %}")
    assert with_template.eos_token_ids == (257,)


def test_a_gguf_file_that_names_another_token(demo_model: Path, tmp_path: Path) -> None:
    """The demo model's header, with <|endoftext|> (0) as its end instead of <|im_end|> (2)."""
    path = tmp_path / "wrong.gguf"
    shutil.copy(demo_model, path)
    key = b"tokenizer.ggml.eos_token_id"
    with path.open("r+b") as file:
        head = file.read(8 << 20)
        at = head.index(key) + len(key)
        assert struct.unpack_from("<II", head, at) == (4, 2)  # a uint32, 2
        file.seek(at + 4)
        file.write(struct.pack("<I", 0))
    assert load_tokenizer(path).eos_token_ids == (0, 2)


def test_folders_and_files_agree(write_folder: Callable[..., Path], tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<|user|>{% endfor %}"
    assert load_tokenizer(write_folder(chat_template=template)).eos_token_ids == (0, 1)

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from checkpoints.gguf_header import read_header
from jaxserve.errors import (
    CheckpointError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from jaxserve.text.gguf_vocab import byte_level_backend
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

Write = Callable[..., Path]

TEXTS = [
    "",
    "The capital of Japan",
    "Größe 東京 👩‍👩‍👧 1234",
    "  two  spaces\n\n\tend ",
    "a<|end|>b <|user|>",
    "\x00\x7f\u00ad\u2028",
]
USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_and_folder_agree_with_the_library(
    backend: tokenizers.Tokenizer, write_folder: Write, write_gguf: Write, text: str
) -> None:
    expected = backend.encode(text).ids
    for path in (write_folder(), write_gguf()):
        tokenizer = load_tokenizer(path)
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected, skip_special_tokens=False) == text
        tokens = tokenizer.grammar_vocabulary(tokenizer.num_ids).tokens
        assert b"".join(tokens[i] for i in expected).decode() == text


def test_ids_of_special_tokens(
    backend: tokenizers.Tokenizer, write_folder: Write, write_gguf: Write
) -> None:
    for path in (write_folder(), write_gguf()):
        tokenizer = load_tokenizer(path)
        assert tokenizer.special_ids == {0, 1, 2, 3}
        assert tokenizer.eos_token_ids == (0,)
        assert tokenizer.bos_token_id == 3
        assert tokenizer.vocab_size == tokenizer.num_ids == backend.get_vocab_size()
        assert tokenizer.decode([0, *tokenizer.encode("x"), 1]) == "x"


def test_more_eos_ids_are_merged(write_folder: Write, write_gguf: Write) -> None:
    folder = write_folder()
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    assert load_tokenizer(folder).eos_token_ids == (0, 2)
    assert load_tokenizer(write_gguf(ggml__eot_token_id=2)).eos_token_ids == (0, 2)


def test_bos_is_added_once(write_folder: Write, write_gguf: Write) -> None:
    for path in (write_folder(add_bos=True), write_gguf(ggml__add_bos_token=True)):
        tokenizer = load_tokenizer(path)
        plain = tokenizer.encode("Hi", add_special_tokens=False)
        assert tokenizer.encode("Hi") == [3, *plain]
        assert tokenizer.encode("<s>Hi") == [3, *plain]
        assert tokenizer.encode("<s><s>Hi", add_special_tokens=False) == [3, 3, *plain]


def test_a_tokenizer_without_bos_keeps_what_was_written(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<s><s>") == [3, 3]


def test_eos_is_added_where_the_file_says_so(write_gguf: Write) -> None:
    assert load_tokenizer(write_gguf(ggml__add_eos_token=True)).encode("")[-1:] == [0]


def test_llama3_adds_bos_unless_the_file_says_no(write_gguf: Write) -> None:
    assert load_tokenizer(write_gguf("llama-bpe")).encode("")[:1] == [3]
    assert load_tokenizer(write_gguf("llama-bpe", ggml__add_bos_token=False)).encode("") == []


# What each family's published pattern makes of these texts.
@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "a  12345 it's", ["a", "Ġ", "Ġ12345", "Ġit", "'s"]),
        ("smollm", "a  123 it's", ["a", "ĠĠ", "1", "2", "3", "Ġit", "'s"]),
        ("llama-bpe", "a  12345 it'S\n\n x", ["a", "Ġ", "Ġ", "123", "45", "Ġit", "'S", "ĊĊ", "Ġx"]),
        ("qwen2", "a  12 it'S\n\n x", ["a", "Ġ", "Ġ", "1", "2", "Ġit", "'S", "ĊĊ", "Ġx"]),
    ],
)
def test_pre_tokenizers(write_gguf: Write, name: str, text: str, pieces: list[str]) -> None:
    pre_tokenizer = byte_level_backend(read_header(write_gguf(name))).pre_tokenizer
    assert [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_an_unknown_id_has_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([10_000, -1]) == ""
    decoder = tokenizer.decoder([])
    assert decoder.add(10_000) == decoder.add(-1) == ""
    assert decoder.next_bytes(10_000) == decoder.next_bytes(-1) == b""


def test_chat_templates_from_each_place(write_folder: Write, write_gguf: Write) -> None:
    template = "{{ messages[0].content }}{{ eos_token }}"
    path = write_gguf(chat_template=template)
    assert load_tokenizer(path).apply_chat_template(USER) == "Hi<|end|>"
    folder = write_folder(chat_template=template)
    assert load_tokenizer(folder).apply_chat_template(USER) == "Hi<|end|>"
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert load_tokenizer(folder).apply_chat_template(USER) == "file Hi"


def test_named_templates_choose_by_tools(write_folder: Write) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools | length }} tools"},
    ]
    tokenizer = load_tokenizer(write_folder(chat_template=named))
    assert tokenizer.apply_chat_template(USER) == "plain"
    assert tokenizer.apply_chat_template(USER, tools=[{"type": "function"}]) == "1 tools"


def test_without_a_template_a_chat_is_refused(write_folder: Write) -> None:
    with pytest.raises(InvalidRequestError, match="no chat template"):
        load_tokenizer(write_folder()).apply_chat_template(USER)


def test_files_that_can_not_be_loaded(
    tmp_path: Path, write_folder: Write, write_gguf: Write
) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no such file"):
        load_tokenizer(tmp_path / "nowhere.gguf")
    with pytest.raises(UnsupportedModelError, match=r"pre-tokenizer tekken.*smollm"):
        load_tokenizer(write_gguf("tekken"))
    with pytest.raises(UnsupportedModelError, match="tokenizer model bert"):
        load_tokenizer(write_gguf(model="bert"))
    folder = write_folder()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: damaged"):
        load_tokenizer(folder)


def test_the_text_package_needs_no_jax() -> None:
    code = (
        "import sys, jaxserve.text.detokenizer; "
        "sys.exit(any(m in sys.modules for m in ('jax', 'flax', 'gguf', 'torch')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Makes smollm2_tokenizer.npz with transformers:

    python tests/golden/make_smollm2_tokenizer.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

needs torch, transformers 5 and gguf, and none of this project's code. Arrays: `ids` [N] and `ends`
[2000], the ids of texts.py's texts one after another; `decoded`, SHA-256 of the texts made of them
without special tokens; `noise`, the same of texts.py's noise, with them; `chats`, JSON of
conversations and what the chat template makes of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from texts import noise, texts
from tokenizers import pre_tokenizers

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about rain."}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "Name three fruits."},
        {"role": "assistant", "content": "Apples, bananas, and cherries."},
        {"role": "user", "content": "And three vegetables?"},
    ],
    [{"role": "user", "content": "Übersetze: „Guten Morgen“ 🌅\n\n  <b>danke</b>"}],
]


def load_tokenizer(gguf: Path) -> Any:
    """transformers' reading of the GGUF, with the file's own pre-tokenizer put in.

    transformers takes plain GPT-2 splitting for every gpt2 vocabulary. The file names `smollm`,
    which takes each digit apart first, as SmolLM2's published tokenizer.json does.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def digest(strings: list[str]) -> np.ndarray:
    return np.array(hashlib.sha256("\0".join(strings).encode()).hexdigest())


def main() -> None:
    tokenizer = load_tokenizer(Path(sys.argv[1]))
    parts = [tokenizer(text).input_ids for text in texts()]
    chats = [
        {
            "messages": chat,
            "add_generation_prompt": generate,
            "text": tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generate
            ),
        }
        for chat, generate in zip(CHATS, (True, True, True, True, False), strict=True)
    ]
    np.savez_compressed(
        Path(__file__).with_name("smollm2_tokenizer.npz"),
        ids=np.concatenate([np.array(ids, np.uint16) for ids in parts]),
        ends=np.cumsum([len(ids) for ids in parts]).astype(np.int32),
        decoded=digest([tokenizer.decode(ids, skip_special_tokens=True) for ids in parts]),
        noise=digest([tokenizer.decode(ids) for ids in noise(len(tokenizer))]),
        chats=np.array(json.dumps(chats)),
    )


if __name__ == "__main__":
    main()

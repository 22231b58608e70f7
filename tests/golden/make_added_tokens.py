"""Makes added_tokens.json with transformers:

    python tests/golden/make_added_tokens.py

needs transformers 5 and sentencepiece, and none of this project's code. Texts with special and
added tokens in them, encoded and decoded with the vocabulary of tiny_sentencepiece.model, once as
new models have it (legacy false: only the beginning of a text gets a space) and once as old ones.
Per case: `text`; `ids`, without BOS; `with_bos`, which is a second one if the text begins with
BOS; `decoded`, without special tokens; `whole`, with
them. `files` is what the folder has beside tokenizer.model.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

HERE = Path(__file__).parent
PARTS = [
    *("<s>", "</s>", "<unk>", "<|user|>", "<tool>", "<|wide|>", "<|word|>"),
    *("the", " the", "quick", " ", "a", "\n", "東", "🚀", "x<", "|user|"),
]


def token(content: str, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": True} | plain | flags


ADDED = {
    "0": token("<unk>"),
    "1": token("<s>"),
    "2": token("</s>"),
    "650": token("<|user|>"),
    "651": token("<tool>", special=False),
    "652": token("<|wide|>", lstrip=True, rstrip=True),
    "653": token("<|word|>", single_word=True),
}


def main() -> None:
    draw = random.Random(7)
    texts = ["".join(draw.choices(PARTS, k=draw.randint(1, 8))) for _ in range(300)]
    # transformers' Metaspace adds no space to a text that begins with one, and sentencepiece does;
    # and transformers doesn't find the user-defined piece of three spaces.
    texts = [text for text in texts if not text.startswith(" ") and "  " not in text]
    out = []
    for legacy in (False, True):
        config = {
            "tokenizer_class": "LlamaTokenizer",
            "legacy": legacy,
            "add_bos_token": True,
            "added_tokens_decoder": ADDED,
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
        }
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(HERE / "tiny_sentencepiece.model", Path(folder, "tokenizer.model"))
            Path(folder, "tokenizer_config.json").write_text(json.dumps(config))
            tokenizer = AutoTokenizer.from_pretrained(folder)
        cases = []
        for text in texts:
            if legacy and "> " in text:
                continue
            ids = tokenizer.encode(text, add_special_tokens=False)
            cases.append(
                {
                    "text": text,
                    "ids": ids,
                    "with_bos": tokenizer.encode(text),
                    "decoded": tokenizer.decode(ids, skip_special_tokens=True),
                    "whole": tokenizer.decode(ids),
                }
            )
        out.append({"files": {"tokenizer_config.json": config}, "cases": cases})
    (HERE / "added_tokens.json").write_text(json.dumps(out, ensure_ascii=False))


if __name__ == "__main__":
    main()

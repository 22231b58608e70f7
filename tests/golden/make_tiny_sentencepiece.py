"""Makes tiny_sentencepiece.model and tiny_sentencepiece.npz with sentencepiece:

    python tests/golden/make_tiny_sentencepiece.py

needs sentencepiece and none of this project's code. A BPE model like Llama 2's: byte fallback, a
space before the text, single digits; with two user-defined pieces. Arrays: `ids` [N] and `ends`
[2000], the ids of texts.py's texts one after another, without BOS; `decoded`, SHA-256 of the texts
made of them.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import sentencepiece
from texts import PROSE, texts

HERE = Path(__file__).parent


def main() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([PROSE] * 200 + texts()[300:320]),
        model_writer=model,
        model_type="bpe",
        vocab_size=650,
        byte_fallback=True,
        character_coverage=0.98,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=True,
        user_defined_symbols=["<mark>", "\u2581\u2581\u2581"],
    )
    (HERE / "tiny_sentencepiece.model").write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    parts = [processor.encode(text) for text in texts()]
    decoded = "\0".join(processor.decode(ids) for ids in parts)
    np.savez_compressed(
        HERE / "tiny_sentencepiece.npz",
        ids=np.concatenate([np.array(ids, np.uint16) for ids in parts]),
        ends=np.cumsum([len(ids) for ids in parts]).astype(np.int32),
        decoded=np.array(hashlib.sha256(decoded.encode()).hexdigest()),
    )


if __name__ == "__main__":
    main()

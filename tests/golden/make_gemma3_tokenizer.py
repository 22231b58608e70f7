"""Makes gemma3_tokenizer.npz with transformers and sentencepiece themselves:

    python tests/golden/make_gemma3_tokenizer.py PATH/gemma-3-270m-q4_k_m.gguf

needs torch, transformers 5, gguf and sentencepiece, and none of this project's code. The texts are
those of texts.py. Arrays: `ids` [N] and `ends` [2000], transformers' ids of all texts one after
another, BOS before each; `pieces` [N'] and `piece_ends` [2000], sentencepiece's, which takes
special tokens for plain text; `decoded`, SHA-256 of the texts that transformers makes of its ids;
`noise`, SHA-256 of the texts of texts.py's noise: special tokens as they are written, and what
sentencepiece makes of the ids between them. (transformers writes U+FFFD for valid characters, too,
next to invalid bytes.)
"""

from __future__ import annotations

import hashlib
import itertools
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import sentencepiece
import transformers
from sentencepiece import sentencepiece_model_pb2
from texts import noise, texts


def processor(path: Path) -> Any:
    """Sentencepiece's own processor, over the vocabulary in the file."""
    fields = gguf.GGUFReader(path).fields
    pieces, scores, kinds = (
        fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")
    )
    model = sentencepiece_model_pb2.ModelProto()
    for piece, score, kind in zip(pieces, scores, kinds, strict=True):
        # The file has spaces in user-defined pieces, and <unk> as a control token.
        kind = 2 if piece == "<unk>" else kind
        model.pieces.add(piece=piece.replace(" ", "\u2581"), score=score, type=kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    trainer.unk_id, trainer.bos_id, trainer.eos_id, trainer.pad_id = 3, 2, 1, 0
    normalizer.name, normalizer.escape_whitespaces = "identity", True
    normalizer.add_dummy_prefix = normalizer.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def text_of(own: Any, ids: list[int]) -> str:
    """Special tokens as they are written, and the text that sentencepiece makes between them."""
    text = ""
    for is_special, group in itertools.groupby(
        ids, lambda i: own.is_control(i) or own.is_unknown(i)
    ):
        run = list(group)
        text += "".join(map(own.id_to_piece, run)) if is_special else own.decode(run)
    return text


def joined(parts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ends = np.cumsum([len(part) for part in parts]).astype(np.int32)
    return np.concatenate([np.array(part, np.int32) for part in parts]), ends


def digest(strings: list[str]) -> np.ndarray:
    return np.array(hashlib.sha256("\0".join(strings).encode()).hexdigest())


def main() -> None:
    path = Path(sys.argv[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    everything = texts()
    whole = [tokenizer(text).input_ids for text in everything]
    decoded = [tokenizer.decode(ids, skip_special_tokens=True) for ids in whole]
    own = processor(path)
    ids, ends = joined(whole)
    pieces, piece_ends = joined([own.encode(text) for text in everything])
    np.savez_compressed(
        Path(__file__).with_name("gemma3_tokenizer.npz"),
        ids=ids,
        ends=ends,
        pieces=pieces,
        piece_ends=piece_ends,
        decoded=digest(decoded),
        noise=digest([text_of(own, ids) for ids in noise(own.vocab_size())]),
    )


if __name__ == "__main__":
    main()

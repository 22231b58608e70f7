"""GrammarVocabulary: what llguidance needs to know of a model's tokens. It can be sent to another
process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec


class GrammarEncoder(msgspec.Struct, frozen=True):
    """Encodes text that continues another text. Has exactly one of its fields.

    Args:
        tokenizer_json: a tokenizer of the `tokenizers` library.
        sentencepiece_model: a serialized ModelProto.
    """

    tokenizer_json: str | None = None
    sentencepiece_model: bytes | None = None

    def build(self) -> Callable[[str], list[int]]:
        """The ids of a text, without special tokens."""
        if self.sentencepiece_model is not None:
            from sentencepiece import SentencePieceProcessor

            processor = SentencePieceProcessor(model_proto=self.sentencepiece_model)
            return partial(processor.encode, return_type=int)
        from tokenizers import Tokenizer

        assert self.tokenizer_json is not None
        backend = Tokenizer.from_str(self.tokenizer_json)
        backend.encode_special_tokens = True  # as text, which isn't found to be a special token
        return lambda text: list(backend.encode(text, add_special_tokens=False).ids)


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """The tokens that may be drawn.

    Args:
        tokens: bytes by id; special tokens have those of their names.
        special_ids: tokens that no text contains.
        eos_ids: tokens that end a complete output.
        num_logits: V, which may exceed the number of tokens.
    """

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: list[int]
    encoder: GrammarEncoder
    num_logits: int

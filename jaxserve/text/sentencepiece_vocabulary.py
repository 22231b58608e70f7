"""SentencePieceVocabulary: a model of the sentencepiece library (tokenizer.model), BPE or Unigram,
with added tokens around it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import groupby

from sentencepiece import SentencePieceProcessor
from sentencepiece.sentencepiece_model_pb2 import ModelProto
from tokenizers import AddedToken

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.sampling.grammar_vocabulary import GrammarEncoder
from jaxserve.text.added_tokens import AddedTokenSplitter
from jaxserve.text.vocabulary import EACH_BYTE, TokenBytes

SPACE = "\u2581"
_Piece = ModelProto.SentencePiece
# Types of pieces that sentencepiece itself neither finds in a text nor shows.
_SPECIAL_TYPES = (_Piece.UNKNOWN, _Piece.CONTROL)


class SentencePieceVocabulary:
    """A sentencepiece model as a Vocabulary.

    As in transformers, special tokens and added tokens are found in a text first, and sentencepiece
    encodes the text between them.

    Args:
        model: pieces of the types UNKNOWN and CONTROL are special tokens.
        added: further tokens by id; they take precedence over pieces.
        bos, eos: ids to add around a text.
        prefixes_all: each text between added tokens begins with a space that isn't written, and not
            only the one at the very beginning; for models that ask for such spaces.
        source: the file, for messages.

    Raises:
        CheckpointError: the model contradicts itself.
        UnsupportedModelError: it changes decoded text (denormalizer_spec).
    """

    def __init__(
        self,
        model: ModelProto,
        added: Mapping[int, AddedToken],
        *,
        bos: int | None = None,
        eos: int | None = None,
        prefixes_all: bool = False,
        source: str = "the model",
    ) -> None:
        special = {
            i: AddedToken(piece.piece, special=True, normalized=False)
            for i, piece in enumerate(model.pieces)
            if piece.type in _SPECIAL_TYPES
        }
        self._added = special | dict(added)
        self._splitter = AddedTokenSplitter(self._added)
        self.added_ids = frozenset(self._added)
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self._pieces = [piece.piece for piece in model.pieces]
        ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._ids = ids | {token.content: i for i, token in self._added.items()}
        self.num_ids = 1 + max(len(self._pieces) - 1, *self._added)
        self.size = len(self._pieces) + sum(i >= len(self._pieces) for i in self._added)
        self._before = [] if bos is None else [bos]
        self._after = [] if eos is None else [eos]

        if model.denormalizer_spec.precompiled_charsmap:
            raise UnsupportedModelError(f"{source}: models that change decoded text don't work")
        self._whole = _processor(model, source)
        # The same without the space before a text, and without any change of the text.
        continuing, exact = ModelProto.FromString(model.SerializeToString()), ModelProto()
        continuing.normalizer_spec.add_dummy_prefix = False
        exact.CopyFrom(continuing)
        exact.normalizer_spec.remove_extra_whitespaces = False
        exact.normalizer_spec.precompiled_charsmap = b""
        self._exact_model = exact.SerializeToString()
        self._exact = self._whole if exact == model else _processor(exact, source)
        self._continuing = self._whole
        if continuing != model and not prefixes_all:
            same = continuing == exact
            self._continuing = self._exact if same else _processor(continuing, source)

        spec = model.normalizer_spec
        drops_text = spec.remove_extra_whitespaces or bool(spec.precompiled_charsmap)
        # An unknown token stands for any number of characters.
        fixed = model.trainer_spec.byte_fallback and not drops_text
        self.longest_piece = max(map(len, self._ids)) if fixed else sys.maxsize
        prefixed = spec.add_dummy_prefix or spec.remove_extra_whitespaces
        self.token_bytes: TokenBytes | None = TokenBytes(
            self._bytes,
            self._first_bytes if prefixed else None,
            repeats_first=spec.remove_extra_whitespaces,
            errors=EACH_BYTE,
        )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        processor = self._whole
        for part in self._splitter.split(text):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += processor.encode(part, return_type=int)
            processor = self._continuing
        return [*self._before, *ids, *self._after] if add_special_tokens else ids

    def decode(self, ids: Sequence[int]) -> str:
        known = [i for i in ids if 0 <= i < self.num_ids]
        parts, processor = [], self._whole
        for is_added, group in groupby(known, self._added.__contains__):
            if is_added:
                parts += [self._added[i].content for i in group]
            else:
                parts.append(processor.decode([i for i in group if i < len(self._pieces)]))
            processor = self._exact
        return "".join(parts)

    def piece(self, token_id: int) -> str | None:
        if (token := self._added.get(token_id)) is not None:
            return str(token.content)
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None

    def piece_id(self, piece: str) -> int | None:
        return self._ids.get(piece)

    def grammar_encoder(self) -> GrammarEncoder:
        return GrammarEncoder(sentencepiece_model=self._exact_model)

    def _bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        if piece is None or token_id in self._added:
            return (piece or "").encode()
        if self._whole.is_byte(token_id):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()

    def _first_bytes(self, token_id: int) -> bytes:
        written = self._bytes(token_id)
        if token_id in self._added or not self._pieces[token_id : token_id + 1]:
            return written
        return written[1:] if self._pieces[token_id].startswith(SPACE) else written


def _processor(model: ModelProto, source: str) -> SentencePieceProcessor:
    try:
        return SentencePieceProcessor(model_proto=model.SerializeToString())
    except Exception as error:  # the library raises plain RuntimeError, or others
        raise CheckpointError(f"{source}: damaged vocabulary ({error})") from None

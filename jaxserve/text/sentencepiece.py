"""Sentencepiece vocabularies (Kudo & Richardson 2018) of the BPE kind as a `tokenizers.Tokenizer`.

Sentencepiece has no merges: it joins the two neighbours whose joined piece has the best score. Here
every pair of pieces that joins to a third becomes a merge, in the order of the scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre

from jaxserve.errors import CheckpointError

# Kinds of pieces, as in sentencepiece's ModelProto and in tokenizer.ggml.token_type.
UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
SPACE = "\u2581"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of a model file.

    Args:
        pieces, scores, kinds: one a token; its index is its id.
        add_space_prefix: a space is put before each text.
        source: the file, for messages.
    """

    pieces: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    add_space_prefix: bool
    source: str


def build(vocabulary: Vocabulary) -> Tokenizer:
    """Encodes and decodes as sentencepiece does, except that special tokens in a text become their
    ids.

    Raises:
        CheckpointError: the vocabulary is incomplete or contradicts itself.
    """
    pieces, kinds, source = vocabulary.pieces, vocabulary.kinds, vocabulary.source
    if not len(pieces) == len(vocabulary.scores) == len(kinds):
        raise CheckpointError(
            f"{source}: damaged vocabulary: {len(pieces)} pieces with {len(vocabulary.scores)} "
            f"scores and {len(kinds)} kinds"
        )
    ids = {piece: i for i, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise CheckpointError(f"{source}: damaged vocabulary: a piece appears twice")
    unknown = next((p for p, kind in zip(pieces, kinds, strict=True) if kind == UNKNOWN), None)
    try:
        bpe = models.BPE(
            ids,
            merges(ids, vocabulary.scores),
            unk_token=unknown or "<unk>",
            fuse_unk=True,
            byte_fallback=BYTE in kinds,
        )
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{source}: damaged vocabulary ({error})") from None
    backend = Tokenizer(bpe)
    to_mark = normalizers.Replace(" ", SPACE)
    backend.normalizer = to_mark
    after = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.add_space_prefix:
        # Metaspace adds no space to a text that begins with one; sentencepiece does.
        first = normalizers.Replace(Regex(r"\A "), "  ")
        backend.normalizer = normalizers.Sequence([first, to_mark])
        backend.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
        after.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(after)
    backend.add_tokens(
        [
            AddedToken(piece, special=kind != USER_DEFINED, normalized=SPACE in piece)
            for piece, kind in zip(pieces, kinds, strict=True)
            if kind in (CONTROL, UNKNOWN, USER_DEFINED)
        ]
    )
    return backend


def merges(ids: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that join to a third, the best first."""
    found = []
    for piece, i in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-scores[i], -cut, left, right))
    found.sort(key=lambda merge: merge[:2])
    return [(left, right) for _, _, left, right in found]

"""Reads sentencepiece `.model` files: the fields of their protocol buffer that encoding needs.

Format: https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from jaxserve.errors import CheckpointError, UnsupportedModelError
from jaxserve.text.sentencepiece import Vocabulary

# Field numbers.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE, _SCORE, _KIND = 1, 2, 3
_MODEL_TYPE, _BPE = 3, 2
_CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES = 2, 3, 4
_NORMAL = 1

Value = int | bytes


def read_vocabulary(path: Path) -> Vocabulary:
    """Reads a model of the BPE kind.

    Raises:
        UnsupportedModelError: a unigram model, or one that normalises text.
        CheckpointError: the file is damaged.
    """
    pieces: list[str] = []
    scores: list[float] = []
    kinds: list[int] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    try:
        for number, value in _fields(path.read_bytes()):
            if number not in (_PIECES, _TRAINER, _NORMALIZER):
                continue
            assert isinstance(value, bytes)
            inner = dict(_fields(value))
            if number == _TRAINER:
                trainer = inner
            elif number == _NORMALIZER:
                normalizer = inner
            else:
                piece, score = inner[_PIECE], inner.get(_SCORE, b"\0" * 4)
                assert isinstance(piece, bytes)
                assert isinstance(score, bytes)
                pieces.append(piece.decode("utf-8"))
                scores.append(struct.unpack("<f", score)[0])
                kinds.append(int(inner.get(_KIND, _NORMAL)))
    except (AssertionError, IndexError, KeyError, UnicodeDecodeError, struct.error):
        raise CheckpointError(f"{path}: not a sentencepiece model, or damaged") from None
    if not pieces:
        raise CheckpointError(f"{path}: not a sentencepiece model: it has no pieces")
    if trainer.get(_MODEL_TYPE, 1) != _BPE:
        raise UnsupportedModelError(
            f"{path}: only sentencepiece models of the BPE kind are supported"
        )
    if normalizer.get(_CHARSMAP) or normalizer.get(_REMOVE_SPACES, 1):
        raise UnsupportedModelError(
            f"{path}: sentencepiece models that normalise text aren't supported"
        )
    return Vocabulary(pieces, scores, kinds, bool(normalizer.get(_DUMMY_PREFIX, 1)), str(path))


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Field numbers and values of a message; fixed-size values are returned as bytes."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            size, position = _varint(data, position)
        else:
            size = {1: 8, 5: 4}[wire]
        if position + size > len(data):
            raise IndexError(position)
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7

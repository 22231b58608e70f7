"""Packed token masks: bit i of word w is token 32 w + i."""

from __future__ import annotations

WORD = 32  # bits of a mask word


def mask_words(vocab: int) -> int:
    """Words of a mask over `vocab` tokens."""
    return -(-vocab // WORD)

"""Bounds the numbers of an output in JSON to what a double holds.

A schema allows numbers of any length, and a model that likes digits never ends one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxserve.sampling.mask_bits import mask_words

MANTISSA, EXPONENT = 20, 2  # characters, sign and point included; digits
_NUMBER, _EXPONENT = frozenset(b"0123456789.+-"), frozenset(b"eE")
_DIGITS = frozenset(b"0123456789")
_QUOTE, _BACKSLASH = b'"\\'


class NumberTokens:
    """The tokens that continue a number, by the length of their part of it.

    Args:
        tokens: bytes by id.
        num_logits: V.
    """

    def __init__(self, tokens: Sequence[bytes], num_logits: int) -> None:
        self.tokens = tokens
        leads = np.array([_lead(token) for token in tokens], np.int32)
        self.longest = int(leads.max(initial=0))
        words = mask_words(num_logits)
        # For each length that is left of a number: packed mask of the tokens that are not longer.
        self.keep = np.full((self.longest, words), -1, np.int32)
        for left in range(self.longest):
            for token in np.flatnonzero(leads > left).tolist():
                self.keep[left, token // 32] &= ~np.int32(np.uint32(1 << token % 32).view(np.int32))


class NumberBounds:
    """Follows one output in JSON, and masks tokens that would make its last number too long."""

    def __init__(self, numbers: NumberTokens) -> None:
        self._numbers = numbers
        self._in_string = self._escaped = False
        self._mantissa = 0  # characters of the number at the end of the output
        self._exponent: int | None = None  # its digits; None without an exponent

    def consume(self, token: int) -> None:
        for char in self._numbers.tokens[token]:
            if self._in_string:
                if self._escaped or char == _BACKSLASH:
                    self._escaped = not self._escaped
                else:
                    self._in_string = char != _QUOTE
            elif char in _NUMBER and self._exponent is not None:
                self._exponent += char in _DIGITS
            elif char in _NUMBER:
                self._mantissa += 1
            elif char in _EXPONENT and self._mantissa and self._exponent is None:
                self._exponent = 0
            else:
                self._mantissa, self._exponent = 0, None
                self._in_string = char == _QUOTE

    def restrict(self, bits: np.ndarray) -> None:
        """Clears the tokens that would make a number too long in a packed mask, unless nothing
        else may follow, as in a constant of the schema."""
        if not self._mantissa:
            return
        exponent = self._exponent
        left = MANTISSA - self._mantissa if exponent is None else EXPONENT - exponent
        if left < self._numbers.longest:
            restricted = bits & self._numbers.keep[max(left, 0)]
            if restricted.any():
                bits[:] = restricted


def _lead(token: bytes) -> int:
    """Bytes at the token's beginning that continue a number."""
    return next((i for i, char in enumerate(token) if char not in _NUMBER), len(token))

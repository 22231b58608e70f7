"""The machine instructions that widen 4- and 8-bit numbers, executed here on every byte.

No GPU runs them in this suite. A small interpreter of the seven instructions (PTX ISA 8.7, sections
9.7.1, 9.7.4, 9.7.8 and 9.7.9) does, and ml_dtypes says what each byte stands for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_kernels import triton_widen

BYTES = np.arange(256, dtype=np.uint8)


def half_words(number: int) -> list[int]:
    return [number & 0xFFFF, number >> 16]


def execute(instructions: str, register: int, halves: type) -> list[int]:
    """The values of $0 and $1 after the instructions, with `register` in $2.

    Args:
        halves: the type of each half of a register in fma.
    """
    names = {"$2": register}

    def value(operand: str) -> int:
        return names[operand] if operand in names else int(operand, 0)

    body = re.sub(r"\.reg \.b32 [^;]*;", "", instructions.strip("{} "))
    for line in filter(None, map(str.strip, body.split(";"))):
        opcode, rest = line.split(" ", 1)
        target, *operands = (word.strip() for word in rest.split(","))
        a, *more = map(value, operands)
        match opcode.split(".")[0]:
            case "mov":
                result = a
            case "and":
                result = a & more[0]
            case "shl":
                result = a << more[0]
            case "shr":
                result = a >> more[0]
            case "prmt":
                parts = (a | more[0] << 32).to_bytes(8, "little")
                chosen = [parts[more[1] >> 4 * i & 7] for i in range(4)]
                result = int.from_bytes(bytes(chosen), "little")
            case "lop3":
                result = 0
                for i in range(32):
                    index = (a >> i & 1) << 2 | (more[0] >> i & 1) << 1 | more[1] >> i & 1
                    result |= (more[2] >> index & 1) << i
            case "fma":
                products = []
                for words in zip(*map(half_words, (a, *more)), strict=True):
                    x, y, z = (float(np.array(w, np.uint16).view(halves)) for w in words)
                    products.append(int(np.array(x * y + z, halves).view(np.uint16)))
                result = products[0] | products[1] << 16
            case other:
                raise AssertionError(f"unknown instruction {other}")
        names[target] = result & 0xFFFFFFFF
    return [names["$0"], names["$1"]]


def widened(instructions: str, halves: type) -> np.ndarray:
    """What each of the 256 bytes becomes, float32."""
    numbers: list[int] = []
    for word in BYTES.view("<u4").tolist():
        numbers += [
            half
            for register in execute(instructions, word, halves)
            for half in half_words(register)
        ]
    return np.array(numbers, np.uint16).view(halves).astype(np.float32)


def nibbles(high: bool) -> np.ndarray:
    return BYTES >> 4 if high else BYTES & 15


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("halves", [ml_dtypes.bfloat16, np.float16])
def test_int4(halves: type, high: bool) -> None:
    found = widened(triton_widen.int4_instructions(jnp.dtype(halves), high), halves)
    np.testing.assert_array_equal(found, nibbles(high).astype(np.float32) - 8)


@pytest.mark.parametrize("high", [False, True])
@pytest.mark.parametrize("halves", [ml_dtypes.bfloat16, np.float16])
def test_e2m1(halves: type, high: bool) -> None:
    found = widened(triton_widen.e2m1_instructions(jnp.dtype(halves), high), halves)
    truth = nibbles(high).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    np.testing.assert_array_equal(found, truth)


def test_e5m2() -> None:
    found = widened(triton_widen.E5M2_TO_FLOAT16, np.float16)
    np.testing.assert_array_equal(found, BYTES.view(ml_dtypes.float8_e5m2).astype(np.float32))


def test_e4m3() -> None:
    found = widened(triton_widen.E4M3_TO_FLOAT16, np.float16)
    truth = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = np.isfinite(truth)
    assert numbers.sum() == 254
    np.testing.assert_array_equal(found[numbers] * 256, truth[numbers])


@pytest.mark.parametrize("kind", ["int4", "e2m1"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_the_interpreted_kernels_widen_to_the_same(kind: str, dtype: type) -> None:
    codes = jnp.asarray(BYTES.view(np.int8))
    halves: Sequence[jnp.ndarray] = triton_widen.widen_nibbles(codes, kind, jnp.dtype(dtype), True)  # type: ignore[arg-type]
    for high, found in enumerate(halves):
        if kind == "int4":
            truth = nibbles(bool(high)).astype(np.float32) - 8
        else:
            truth = nibbles(bool(high)).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
        np.testing.assert_array_equal(np.asarray(found, np.float32), truth)

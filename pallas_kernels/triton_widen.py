"""Numbers of 4 and 8 bits, widened in the registers of an NVIDIA GPU.

The compiler would convert them one by one. The instructions here convert four bytes at once, and on
sm_80 too, which has no conversion from e4m3. A test executes them on all bytes.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plt

# Four bytes to two pairs of 16 bits, in the upper or the lower byte of each; the rest is zeros.
_TO_UPPER = "prmt.b32 {0}, 0, {2}, 0x5040; prmt.b32 {1}, 0, {2}, 0x7060;"
_TO_LOWER = "prmt.b32 {0}, 0, {2}, 0x0504; prmt.b32 {1}, 0, {2}, 0x0706;"

# Both 8-bit floats are a float16 with fewer bits. For e4m3, all bits except the sign are shifted
# right by one.
E5M2_TO_FLOAT16 = _TO_UPPER.format("$0", "$1", "$2")
E4M3_TO_FLOAT16 = (
    "{ .reg .b32 a, b, c, d;"
    + _TO_UPPER.format("a", "b", "$2")
    + "and.b32 c, a, 0x7fff7fff; and.b32 d, b, 0x7fff7fff; shr.u32 c, c, 1; shr.u32 d, d, 1;"
    + "lop3.b32 $0, a, 0x80008000, c, 0xea; lop3.b32 $1, b, 0x80008000, d, 0xea; }"
)


# float8_e4m3fn numbers come out of widen_floats so many times too small.
E4M3_FACTOR = 256.0


def widen_floats(x: jax.Array, stored: jnp.dtype, dtype: jnp.dtype, interpret: bool) -> jax.Array:
    """Converts floats of 8 bits, which were loaded as int8 bits, to the compute type; others are
    only cast.

    For e5m2 this is exact. The exponent bias of e4m3 is smaller by 8 than float16's, so its numbers
    come out E4M3_FACTOR times too small, subnormals included, which the caller corrects. Its NaN
    comes out as 480 / 256, so the writer must not store NaN.
    """
    e4m3 = stored == jnp.float8_e4m3fn
    if x.dtype == jnp.int8 and interpret:
        bits = x.astype(jnp.int32)  # the sign is in all bits from 7 up
        bits = (bits << 7) & 0xBFFF if e4m3 else bits << 8
        x = lax.bitcast_convert_type(bits.astype(jnp.int16), jnp.float16)
    elif x.dtype == jnp.int8:
        # On a flat array, Triton needs a tenth fewer instructions in the loop and, with 32 keys, 80
        # instead of 128 registers.
        (flat,) = plt.elementwise_inline_asm(
            E4M3_TO_FLOAT16 if e4m3 else E5M2_TO_FLOAT16,
            args=[x.reshape(-1)],
            constraints="=r,=r,r",
            pack=4,
            result_shape_dtypes=[jax.ShapeDtypeStruct((x.size,), jnp.float16)],
        )
        x = flat.reshape(x.shape)
    return x.astype(dtype)


# What codes of 4 bits become, in bfloat16 and in float16.
#
# An int4's number is its code less 8. The code becomes the last bits of a float whose unit is 1
# (128 or 1,024 and up), from which 128 + 8 or 1,024 + 8 is then subtracted.
_INT4 = "lop3.b32 {out}, {x}, 0x000f000f, {magic}, 0xea; fma.rn.{type}x2 {out}, {out}, e, f;"
# An e2m1's bits are the sign, and the last two bits of the exponent with the first of the fraction
# of a float that is 2^126 or 2^14 times too small, subnormals included.
_E2M1 = (
    "shl.b32 c, {x}, {exponent}; and.b32 c, c, {mask}; shl.b32 d, {x}, {sign};"
    "lop3.b32 {out}, d, 0x80008000, c, 0xea; fma.rn.{type}x2 {out}, {out}, e, f;"
)


def int4_instructions(dtype: jnp.dtype, high: bool) -> str:
    """From a register of four bytes, $2, to the numbers of their low or high nibbles, $0 and $1, in
    bfloat16 or float16."""
    if dtype == jnp.bfloat16:
        fields, one, less = {"type": "bf16", "magic": "0x43004300"}, "0x3f803f80", "0xc308c308"
    else:
        fields, one, less = {"type": "f16", "magic": "0x64006400"}, "0x3c003c00", "0xe408e408"
    return (
        f"{{ .reg .b32 a, b, e, f; mov.b32 e, {one}; mov.b32 f, {less};"
        + _TO_LOWER.format("a", "b", "$2")
        + ("shr.u32 a, a, 4; shr.u32 b, b, 4;" if high else "")
        + _INT4.format(out="$0", x="a", **fields)
        + _INT4.format(out="$1", x="b", **fields)
        + " }"
    )


def e2m1_instructions(dtype: jnp.dtype, high: bool) -> str:
    """As int4_instructions()."""
    down = 4 if high else 0
    if dtype == jnp.bfloat16:
        fields, scale, exponent = {"type": "bf16", "mask": "0x01c001c0"}, "0x7e807e80", 6 - down
    else:
        fields, scale, exponent = {"type": "f16", "mask": "0x0e000e00"}, "0x74007400", 9 - down
    return (
        f"{{ .reg .b32 a, b, c, d, e, f; mov.b32 e, {scale}; mov.b32 f, 0x80008000;"
        + _TO_LOWER.format("a", "b", "$2")
        + _E2M1.format(out="$0", x="a", exponent=exponent, sign=12 - down, **fields)
        + _E2M1.format(out="$1", x="b", exponent=exponent, sign=12 - down, **fields)
        + " }"
    )


def widen_nibbles(
    x: jax.Array, kind: Literal["int4", "e2m1"], dtype: jnp.dtype, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """The numbers of the low nibbles of int8 bits, and those of the high ones, each of x's shape.
    int4 is the code less 8. Exact.
    """
    if interpret or dtype == jnp.float32:
        bits = x.astype(jnp.int32)
        number = _int4 if kind == "int4" else _e2m1
        return number(bits & 15).astype(dtype), number((bits >> 4) & 15).astype(dtype)

    def numbers(high: bool) -> jax.Array:
        instructions = int4_instructions if kind == "int4" else e2m1_instructions
        (flat,) = plt.elementwise_inline_asm(
            instructions(dtype, high),
            args=[x.reshape(-1)],
            constraints="=r,=r,r",
            pack=4,
            result_shape_dtypes=[jax.ShapeDtypeStruct((x.size,), dtype)],
        )
        return flat.reshape(x.shape)

    return numbers(high=False), numbers(high=True)


def _int4(code: jax.Array) -> jax.Array:
    return (code - 8).astype(jnp.float32)


def _e2m1(code: jax.Array) -> jax.Array:
    """Of the OCP's Microscaling Formats 1.0, section 5.3.3: sign, two bits of exponent, one of
    fraction."""
    exponent, fraction = (code >> 1) & 3, (code & 1).astype(jnp.float32)
    normal = (1 + fraction / 2) * lax.shift_left(jnp.int32(1), exponent).astype(jnp.float32) / 2
    size = jnp.where(exponent == 0, fraction / 2, normal)
    return jnp.where(code & 8, -size, size)

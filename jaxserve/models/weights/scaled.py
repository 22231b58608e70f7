"""Codes of 4 or 8 bits with scales: FP8, int8, int4 (AWQ, GPTQ, compressed-tensors) and MXFP4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from cpu_kernels import Columns

# The OCP's Microscaling Formats 1.0, section 5.3.3: sign, two bits of exponent, one of mantissa.
_POSITIVE = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_POSITIVE, *(-value for value in _POSITIVE))

CodeKind = Literal["int8", "fp8", "int4", "e2m1"]


@dataclass(frozen=True)
class Scaled:
    """(codes - zeros) * scales.

    Arrays:
        codes: [*O, I] of a type of 8 bits; of 4 bits [*O, I/2] uint8, the low nibble first, an
            int4's being its value + 8.
        scales: [*O, G] floats, or uint8 that stand for 2 ** (byte - 127).
        zeros: [*O, G] integers, or none.
        groups: [I] int32, the group of each input, which all outputs share; without it the groups
            are G runs of inputs.

    Args:
        codes: how they are to be read.
        group: inputs of a run, the last of which may be shorter; 0 is all of them.
    """

    codes: CodeKind
    group: int = 0

    @property
    def trailing(self) -> Mapping[str, int]:
        return {"codes": 1, "scales": 1, "zeros": 1}

    def inputs(self, arrays: Mapping[str, Any]) -> int:
        return int(arrays["codes"].shape[-1]) * (2 if self.codes in ("int4", "e2m1") else 1)

    def widen(self, arrays: Mapping[str, jax.Array]) -> jax.Array:
        values = self._values(arrays["codes"])
        groups = arrays.get("groups")
        if (zeros := arrays.get("zeros")) is not None:
            values -= self._spread(zeros.astype(jnp.float32), values.shape[-1], groups)
        scales = arrays["scales"]
        if scales.dtype == jnp.uint8:
            scales = scales.view(jnp.float8_e8m0fnu)
        return values * self._spread(scales.astype(jnp.float32), values.shape[-1], groups)

    def columns(self, arrays: Mapping[str, jax.Array]) -> Columns | None:
        from cpu_kernels import pack_codes

        size = self.group or self.inputs(arrays)
        if "groups" in arrays or (size % 8 and size < self.inputs(arrays)):
            return None
        codes, zeros = arrays["codes"], arrays.get("zeros")
        table: tuple[float, ...] = ()
        if self.codes in ("int4", "e2m1"):
            table = E2M1 if self.codes == "e2m1" else tuple(map(float, range(-8, 8)))
            codes = self._nibbles(codes)
        if zeros is not None and zeros.dtype != jnp.int8:
            zeros = zeros.astype(jnp.bfloat16)  # exact: none has more than eight bits and a sign
        return pack_codes(
            codes, group=self.group, table=table, scales=arrays["scales"], zeros=zeros
        )

    def _nibbles(self, codes: jax.Array) -> jax.Array:
        nibbles = jnp.stack([codes & 15, codes >> 4], axis=-1)
        return nibbles.reshape(*codes.shape[:-1], -1)

    def _values(self, codes: jax.Array) -> jax.Array:
        if self.codes in ("int8", "fp8"):
            return codes.astype(jnp.float32)
        nibbles = self._nibbles(codes)
        if self.codes == "int4":
            return nibbles.astype(jnp.float32) - 8
        return jnp.asarray(E2M1, jnp.float32)[nibbles]

    def _spread(self, scales: jax.Array, inputs: int, groups: jax.Array | None) -> jax.Array:
        """[*O, G] to [*O, I], or to [*O, 1] where that is as good."""
        if groups is not None:
            return scales[..., groups]
        if not self.group:
            return scales
        return jnp.repeat(scales, self.group, axis=-1)[..., :inputs]

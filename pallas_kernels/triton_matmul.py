"""Products with matrices of 4- and 8-bit codes, in Pallas for NVIDIA GPUs, through the Triton
backend.

Codes are read from memory as they are stored and widened in registers, so that a decode reads only
the packed bytes. A program multiplies a tile of rows with a tile of outputs over all inputs, or
over one of several splits of them, whose sums are then added in order. With experts, tiles are
those of a work list: each holds some rows of one expert.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pallas_kernels.triton_widen import E4M3_FACTOR, widen_floats, widen_nibbles

_Ref = Any  # Pallas has no public type for references
CodeKind = Literal["int8", "fp8", "int4", "e2m1"]
# Columns of the work list.
_EXPERT, _FIRST, _COUNT = range(3)
# One for each multiprocessor of an H100. More splits would write and read more partial sums.
_PROGRAMS = 132


@dataclass(frozen=True, slots=True)
class _Static:
    """The static parameters of a kernel.

    Args:
        rows, outputs, columns: of a tile; columns are bytes of codes.
        group: bytes of codes that share a scale.
    """

    kind: CodeKind
    rows: int
    outputs: int
    columns: int
    group: int
    interpret: bool

    @property
    def spread(self) -> bool:
        """Whether a tile has several groups: then numbers are scaled before the product."""
        return self.group < self.columns


def takes_stored(kind: CodeKind, inputs: int, group: int) -> bool:
    """Whether stored_matmul takes such a matrix: the group of inputs that share a scale is all of
    them (0), or a power of two from 16 up, or a multiple of 128."""
    packed = kind in ("int4", "e2m1")
    if packed and inputs % 2:
        return False
    return group == 0 or group % 128 == 0 or (group >= 16 and group & (group - 1) == 0)


def stored_matmul(
    x: jax.Array,  # [R, I]
    codes: jax.Array,  # [X, O, I] int8 or float8_e4m3fn, or [X, O, I/2] uint8
    scales: jax.Array,  # [X, O, G] floats, or uint8 that stand for 2 ** (byte - 127)
    zeros: jax.Array | None = None,  # [X, O, G] integers
    *,
    kind: CodeKind,
    group: int,
    sizes: jax.Array | None = None,  # [X]
    splits: int | None = None,
    interpret: bool = False,
) -> jax.Array:  # [R, O]
    """The products of rows with (codes - zeros) * scales, sums in float32, in x's type.

    Args:
        kind: "int4" and "e2m1" have two codes a byte, the low nibble first; an int4 is its code
            less 8.
        group: inputs that share a scale; 0 is all of them. See takes_stored().
        sizes: rows of each expert, in order; the products of the rows after those are arbitrary.
            None: X is 1.
        splits: of the inputs, over programs; None chooses.
    """
    num_rows = len(x)
    experts, outputs, width = codes.shape
    packed = kind in ("int4", "e2m1")
    static = _static(kind, num_rows // experts, width, group, interpret)
    total = pl.cdiv(width, static.columns)
    tiles = _tiles(static.rows, num_rows, sizes)
    programs = len(tiles) * pl.cdiv(outputs, static.outputs)
    splits = splits or max(1, min(_PROGRAMS // programs, total // 4))
    steps = pl.cdiv(total, splits)
    splits = pl.cdiv(total, steps)
    if scales.dtype == jnp.uint8:
        scales = lax.bitcast_convert_type(scales, jnp.int8)
    # Of two codes in a byte the low one belongs to an even input: [2, R, I/2].
    x_parts = x.reshape(num_rows, width, 2).transpose(2, 0, 1) if packed else x[None]
    shape = (splits, num_rows, outputs) if splits > 1 else (num_rows, outputs)
    product = pl.pallas_call(
        functools.partial(_kernel, static=static, steps=steps, split=splits > 1),
        grid=(len(tiles), pl.cdiv(outputs, static.outputs), splits),
        out_shape=jax.ShapeDtypeStruct(shape, jnp.float32 if splits > 1 else x.dtype),
        in_specs=[pl.no_block_spec] * (4 if zeros is None else 5),
        out_specs=pl.no_block_spec,
        interpret=interpret,
        compiler_params=plt.CompilerParams(
            num_warps=8 if static.rows > 64 else 4, num_stages=5 if static.rows <= 32 else 3
        ),
        name="stored_matmul",
    )(
        tiles,
        x_parts,
        lax.bitcast_convert_type(codes, jnp.int8),
        scales,
        *(() if zeros is None else (zeros,)),
    )
    return product.sum(0).astype(x.dtype) if splits > 1 else product


def _static(kind: CodeKind, rows: int, width: int, group: int, interpret: bool) -> _Static:
    """Tiles for so many rows of an expert, and codes of so many bytes."""
    packed = kind in ("int4", "e2m1")
    group = (group // 2 if packed else group) or pl.next_power_of_2(width)
    columns = 64 if packed else 128
    if 32 <= group < columns:
        columns = group
    return _Static(
        kind=kind,
        rows=min(128, max(16, pl.next_power_of_2(rows))),
        outputs=32 if rows <= 16 else 64,  # narrow tiles, so that fewer matrices need splits
        columns=columns,
        group=group,
        interpret=interpret,
    )


def _tiles(size: int, num_rows: int, sizes: jax.Array | None) -> jax.Array:  # [N, 3]
    """The work list: an expert, its first row in this tile, and how many rows; none at the end."""
    if sizes is None:
        first = jnp.arange(0, num_rows, size, dtype=jnp.int32)
        return jnp.stack(
            [jnp.zeros_like(first), first, jnp.minimum(size, num_rows - first)], axis=1
        )
    counts = -(-sizes // size)
    ends, row_ends = jnp.cumsum(counts), jnp.cumsum(sizes)
    # Each expert's last tile may be partly filled.
    most = num_rows // size + min(len(sizes), num_rows)
    i = jnp.arange(most, dtype=jnp.int32)
    expert = jnp.sum(ends[None] <= i[:, None], axis=1, dtype=jnp.int32)
    expert = jnp.minimum(expert, len(sizes) - 1)
    first = row_ends[expert] - sizes[expert] + (i - (ends - counts)[expert]) * size
    count = jnp.where(i < ends[-1], jnp.minimum(size, row_ends[expert] - first), 0)
    return jnp.stack([expert, first, count], axis=1).astype(jnp.int32)


def _kernel(
    tiles_ref: _Ref,  # [N, 3]
    x_ref: _Ref,  # [1 or 2, R, columns of codes]
    codes_ref: _Ref,  # [X, O, C] int8
    scales_ref: _Ref,  # [X, O, G]
    *refs: _Ref,  # zeros [X, O, G] if there are any, and the product
    static: _Static,
    steps: int,
    split: bool,
) -> None:
    """The product of one tile of rows with one tile of outputs, over one split of `steps` tiles of
    columns."""
    out_ref = refs[-1]
    tile, of_outputs, part = (pl.program_id(axis) for axis in range(3))
    count = tiles_ref[tile, _COUNT]

    @pl.when(count > 0)
    def _() -> None:
        expert, first = tiles_ref[tile, _EXPERT], tiles_ref[tile, _FIRST]
        row = jnp.arange(static.rows)
        output = of_outputs * static.outputs + jnp.arange(static.outputs)
        row_mask, output_mask = row < count, output < codes_ref.shape[1]
        matrix = _Matrix(codes_ref, scales_ref, refs[:-1], expert, output, output_mask, static)

        def step(i: jax.Array, total: jax.Array) -> jax.Array:
            column = i * static.columns + jnp.arange(static.columns)
            column_mask = column < codes_ref.shape[2]
            mask = row_mask[:, None] & column_mask[None]
            parts = [
                plt.load(x_ref.at[n, (first + row)[:, None], column[None]], mask=mask, other=0.0)
                for n in range(x_ref.shape[0])
            ]
            numbers = matrix.load(i, column, column_mask, x_ref.dtype)
            dots = [dot(a, b.T) for a, b in zip(parts, numbers, strict=True)]
            product = functools.reduce(jnp.add, dots)
            if static.spread:
                return total + product
            scale, zero = matrix.of_group(i * static.columns // static.group)
            if zero is not None:
                sums = [jnp.sum(a.astype(jnp.float32), axis=1) for a in parts]
                product -= functools.reduce(jnp.add, sums)[:, None] * zero[None]
            return total + product * scale[None]

        low = part * steps
        high = jnp.minimum(low + steps, pl.cdiv(codes_ref.shape[2], static.columns))
        total = lax.fori_loop(
            low, high, step, jnp.zeros((static.rows, static.outputs), jnp.float32)
        )
        at = ((first + row)[:, None], output[None])
        where = out_ref.at[(part, *at) if split else at]
        mask = row_mask[:, None] & output_mask[None]
        plt.store(where, total.astype(out_ref.dtype), mask=mask)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """What a program reads of one expert's matrix."""

    codes_ref: _Ref
    scales_ref: _Ref
    zeros_refs: tuple[_Ref, ...]  # one or none
    expert: jax.Array
    output: jax.Array  # [outputs of a tile]
    output_mask: jax.Array
    static: _Static

    def load(
        self, step: jax.Array, column: jax.Array, column_mask: jax.Array, dtype: jnp.dtype
    ) -> tuple[jax.Array, ...]:
        """The numbers of a tile, each [outputs, columns]; scaled where it has several groups."""
        static = self.static
        codes = plt.load(
            self.codes_ref.at[self.expert, self.output[:, None], column[None]],
            mask=self.output_mask[:, None] & column_mask[None],
            other=0,
        )
        numbers: tuple[jax.Array, ...]
        if static.kind in ("int4", "e2m1"):
            numbers = widen_nibbles(codes, static.kind, dtype, static.interpret)
        elif static.kind == "fp8":
            stored = jnp.dtype(jnp.float8_e4m3fn)
            numbers = (widen_floats(codes, stored, dtype, static.interpret),)
        else:
            numbers = (codes.astype(dtype),)
        if not static.spread:
            return numbers
        groups = static.columns // static.group
        group = step * groups + jnp.arange(groups)
        scale, zero = self._of_groups(group)
        scaled = []
        for number in numbers:
            number = number.astype(jnp.float32)
            if zero is not None:
                number -= self._spread(zero)
            scaled.append((number * self._spread(scale)).astype(dtype))
        return tuple(scaled)

    def of_group(self, group: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Scale and zero of one group, each [outputs] float32."""
        return self._fetch((self.expert, self.output, group), self.output_mask)

    def _of_groups(self, group: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        mask = self.output_mask[:, None] & (group < self.scales_ref.shape[2])[None]
        return self._fetch((self.expert, self.output[:, None], group[None]), mask)

    def _fetch(
        self, at: tuple[jax.Array, ...], mask: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        scale = plt.load(self.scales_ref.at[at], mask=mask, other=0)
        if scale.dtype == jnp.int8:  # the bits of a float32's exponent
            bits = (scale.astype(jnp.int32) & 255) << 23
            scale = lax.bitcast_convert_type(bits, jnp.float32)
        scale = scale.astype(jnp.float32)
        if self.static.kind == "fp8":
            scale *= E4M3_FACTOR
        zero = None
        for ref in self.zeros_refs:
            zero = plt.load(ref.at[at], mask=mask, other=0).astype(jnp.float32)
        return scale, zero

    def _spread(self, of_groups: jax.Array) -> jax.Array:
        """[outputs, groups] to [outputs, columns]."""
        shape = (self.static.outputs, self.static.columns // self.static.group, self.static.group)
        wide = jnp.broadcast_to(of_groups[:, :, None], shape)
        return wide.reshape(self.static.outputs, self.static.columns)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """a @ b in a kernel, accumulated in float32; float32 operands are not rounded to TF32."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.dot(a, b, preferred_element_type=jnp.float32, precision=precision)

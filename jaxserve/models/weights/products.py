"""Products with a matrix, however it is stored: the one place that looks at its scheme."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from jaxserve.models.weights import gpu_products
from jaxserve.models.weights.adapters import Adapted
from jaxserve.models.weights.packed import Packed
from jaxserve.models.weights.weight import Joined, Matrix, Stored, Weight, widened


def linear(
    x: jax.Array, weight: Matrix | Packed | Adapted, dtype: jnp.dtype | None = None
) -> jax.Array:
    """The product of x [T, *I] with a matrix [*O, *I]: [T, *O], of this type or x's.

    On a CPU sums are float32, and a row's bits don't depend on the number of rows. A stored matrix
    gives the bits that it gives widened, a packed one those that it gives unpacked.
    """
    if isinstance(weight, Adapted):
        return weight.stack.add(linear(x, weight.base, dtype), x, weight.rows)
    rows = x.reshape(len(x), -1)
    if isinstance(weight, Packed):
        return weight.product(rows).astype(dtype or x.dtype)
    if isinstance(weight, Joined):
        products = [linear(rows, part, dtype) for part in weight.parts]
        return jnp.concatenate(products, weight.axis + 1)
    if isinstance(weight, Weight):
        outputs = weight.outputs
        on_gpu = jax.default_backend() != "cpu"
        if on_gpu and (product := gpu_products.of_codes(rows, weight)) is not None:
            return product.astype(dtype or x.dtype).reshape(len(x), *outputs)
        if weight.rounding is not None:
            rows = weight.rounding.round(rows, weight.arrays.get("input_scale"))
        if on_gpu and (product := gpu_products.of_packed(rows, weight)) is not None:
            return product.astype(dtype or x.dtype).reshape(len(x), *outputs)
        kernel = widened(weight, x.dtype)
    else:
        outputs, kernel = weight.shape[: weight.ndim - x.ndim + 1], weight
    product = _dense(rows, kernel.reshape(math.prod(outputs), -1), dtype)
    return product.reshape(len(x), *outputs)


def _dense(
    x: jax.Array, kernel: jax.Array, dtype: jnp.dtype | None
) -> jax.Array:  # [T, I], [O, I] -> [T, O]
    if jax.default_backend() != "cpu":
        return jnp.matmul(x, kernel.T, preferred_element_type=dtype)
    import cpu_kernels

    product = cpu_kernels.linear(x.astype(jnp.float32), kernel.astype(jnp.float32))
    return product.astype(dtype or x.dtype)


def take(table: Matrix | Packed | Adapted, ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Rows [T, I] of a table [V, I]."""
    if isinstance(table, Adapted):
        return table.stack.add(take(table.base, ids, dtype), table.taken(ids), table.rows)
    if isinstance(table, Packed):
        return table.rows(ids).astype(dtype)
    if isinstance(table, Weight):
        return table.rows(ids).widen().astype(dtype)
    if isinstance(table, Joined):
        return widened(table, dtype)[ids]
    return table[ids]


def expert_linear(x: jax.Array, weight: Matrix | Packed | Adapted, expert: jax.Array) -> jax.Array:
    """The product of x [R, I] with one expert's matrix: [R, O].

    Args:
        weight: [X, I, *O] of floats, or stored or packed as [X, *O, I].
    """
    if isinstance(weight, Adapted):
        product = expert_linear(x, weight.base, expert)
        return weight.stack.add(product, x, weight.of_experts(expert))
    if isinstance(weight, Packed):
        return weight.product(x, expert).astype(x.dtype).reshape(len(x), -1)
    if isinstance(weight, Stored):
        return linear(x, weight[expert]).reshape(len(x), -1)
    kernel = weight[expert]
    return x @ kernel.reshape(len(kernel), -1)


def experts_linear(
    x: jax.Array, weight: Matrix | Adapted, sizes: jax.Array, own: jax.Array
) -> jax.Array:
    """The products of rows x [R, I] with the matrices of their experts: [R, O].

    Args:
        weight: as expert_linear() takes it.
        sizes: [X] rows of each expert, in order.
        own: [R] each row's expert.
    """
    if isinstance(weight, Adapted):
        plain = experts_linear(x, weight.base, sizes, own)
        return weight.stack.add(plain, x, weight.of_experts(own))
    if isinstance(weight, Joined):
        outputs = [(part.outputs[1:], experts_linear(x, part, sizes, own)) for part in weight.parts]
        parts = [product.reshape(len(x), *shape) for shape, product in outputs]
        return jnp.concatenate(parts, weight.axis).reshape(len(x), -1)
    if isinstance(weight, Weight):
        if weight.rounding is not None:
            scale = weight.arrays.get("input_scale")
            x = weight.rounding.round(x, None if scale is None else scale[own])
        if jax.default_backend() != "cpu":
            product = gpu_products.of_packed(x, weight, sizes)
            if product is not None:
                return product
        kernel = widened(weight, x.dtype)
        kernel = kernel.reshape(len(kernel), -1, kernel.shape[-1]).swapaxes(1, 2)
    else:
        kernel = weight.reshape(*weight.shape[:2], -1)
    return lax.ragged_dot(x, kernel, sizes)

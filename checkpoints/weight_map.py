"""How the tensors of a checkpoint, under Hugging Face's names, become a model's parameters.

A rule makes a parameter's source from its shape. Most families use the same names, which are in
one table; FAMILY_RULES has those that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxserve.models.config import ModelConfig
from jaxserve.models.registry import model_class

Path = tuple[Hashable, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """How one parameter is made.

    Args:
        tensors: the checkpoint's tensors and their shapes; linear weights are [out, in] as Hugging
            Face stores them.
        build: joins the tensors into the parameter.
        shape: of the parameter.
        rows: of a matrix, which may be kept as it is stored: the same for a single input.
        inputs: the parameter's dimensions that `rows` has only one of.
        experts, table: whether the first dimension is the experts', or the vocabulary's.
    """

    tensors: dict[str, Shape]
    build: Callable[..., np.ndarray]
    shape: Shape = ()
    rows: Source | None = None
    inputs: tuple[int, ...] = ()
    experts: bool = False
    table: bool = False

    def outputs(self) -> np.ndarray:
        """For each output [*O] of a matrix its row, among those of all tensors in order."""
        assert self.rows is not None
        numbers, before = [], 0
        for shape in self.rows.tensors.values():
            numbers.append(np.arange(before, before + math.prod(shape)).reshape(shape))
            before += math.prod(shape)
        return self.rows.build(*numbers).squeeze(self.inputs)


Rule = Callable[[Shape], Source]


@lru_cache(maxsize=4)
def sources(config: ModelConfig) -> dict[Path, Source]:
    """Parameter path -> source.

    Raises:
        UnsupportedModelError: an unknown architecture.
    """
    cls = model_class(config.architecture)
    abstract = nnx.eval_shape(lambda: nnx.state(cls(config, jnp.dtype(jnp.float32))))
    rules = RULES | FAMILY_RULES.get(config.architecture, {})
    found: dict[Path, Source] = {}
    for path, variable in nnx.to_flat_state(abstract):
        inside_layer = path[0] == "layers"
        rule = rules[".".join(map(str, path[2:] if inside_layer else path))]
        prefix = f"model.layers.{path[1]}." if inside_layer else ""
        source, shape = rule(variable.shape), variable.shape
        tensors = {prefix + name: size for name, size in source.tensors.items()}
        metadata = variable.get_metadata()
        inputs = tuple(len(shape) + i for i in metadata.get("contracted", ()))
        thin = tuple(1 if i in inputs else size for i, size in enumerate(shape))
        rows = rule(thin) if inputs else None
        first = metadata["out_sharding"][0]
        found[path] = Source(
            tensors, source.build, shape, rows, inputs, first == "expert", first == "vocab"
        )
    return found


def _as_is(name: str) -> Rule:
    return lambda shape: Source({name: shape}, lambda x: x)


def _flat(name: str) -> Rule:
    """Stored in one dimension, such as a bias over heads."""
    return lambda shape: Source({name: (math.prod(shape),)}, lambda x: x.reshape(shape))


def _one_output(name: str) -> Rule:
    """A matrix [1, E] as a vector [E]."""
    return lambda shape: Source({name: (1, *shape)}, lambda x: x[0])


def _inputs_first(inner: Rule) -> Rule:
    """The input dimension moved from the end to the front."""

    def rule(shape: Shape) -> Source:
        plain = inner((*shape[1:], shape[0]))
        return Source(plain.tensors, lambda *parts: np.moveaxis(plain.build(*parts), -1, 0))

    return rule


def _qkv(stem: str) -> Rule:
    """Separate tensors of q, k and v, joined to [K, G+2, D, E]."""

    def rule(shape: Shape) -> Source:
        kv_heads, rows, head_dim, hidden = shape

        def build(*parts: np.ndarray) -> np.ndarray:
            heads = [w.reshape(kv_heads, -1, head_dim, hidden) for w in parts]
            return np.concatenate(heads, axis=1)

        kv = kv_heads * head_dim
        outs = {"q": (rows - 2) * kv, "k": kv, "v": kv}
        return Source({stem.format(part): (out, hidden) for part, out in outs.items()}, build)

    return rule


def _qkv_bias(stem: str) -> Rule:
    def rule(shape: Shape) -> Source:  # [K, G+2, D]
        unbiased = _qkv(stem)((*shape, 1))
        build = unbiased.build
        tensors: dict[str, Shape] = {name: (out,) for name, (out, _) in unbiased.tensors.items()}
        return Source(tensors, lambda *parts: build(*parts)[..., 0])

    return rule


def _fused_qkv(name: str) -> Rule:
    """One tensor with the rows of q, then k, then v."""

    def rule(shape: Shape) -> Source:
        apart = _qkv("{}")(shape)
        ends = np.cumsum([out for out, _ in apart.tensors.values()])
        return Source(
            {name: (int(ends[-1]), shape[-1])}, lambda w: apart.build(*np.split(w, ends[:-1]))
        )

    return rule


def _kv_scales(stem: str) -> Rule:
    """The scales of keys and of values, one a head."""

    def rule(shape: Shape) -> Source:  # [2, K]
        tensors: dict[str, Shape] = {stem.format(part): shape[1:] for part in ("k", "v")}
        return Source(tensors, lambda *parts: np.stack(parts))

    return rule


def _out(name: str) -> Rule:
    def rule(shape: Shape) -> Source:  # [E, H, D]
        hidden, heads, head_dim = shape
        return Source({name: (hidden, heads * head_dim)}, lambda w: w.reshape(shape))

    return rule


def _gate_up(gate: str, up: str) -> Rule:
    def rule(shape: Shape) -> Source:  # [2, F, E]
        return Source({gate: shape[1:], up: shape[1:]}, lambda g, u: np.stack([g, u]))

    return rule


def _fused_gate_up(name: str) -> Rule:
    """One tensor with the rows of gate, then up."""

    def rule(shape: Shape) -> Source:
        _, size, hidden = shape
        return Source({name: (2 * size, hidden)}, lambda w: w.reshape(shape))

    return rule


def _experts(inner: Rule) -> Rule:
    """Applies an inner rule to every expert; {} in its names is replaced by the expert's number."""

    def rule(shape: Shape) -> Source:
        one = inner(shape[1:])
        tensors = {
            name.format(i): size for i in range(shape[0]) for name, size in one.tensors.items()
        }
        count = len(one.tensors)

        def build(*parts: np.ndarray) -> np.ndarray:
            out = np.empty(shape, parts[0].dtype)
            for i in range(shape[0]):
                out[i] = one.build(*parts[i * count : (i + 1) * count])
            return out

        return Source(tensors, build)

    return rule


def _interleaved(name: str) -> Rule:
    """Columns gate, up, gate, up, ... [..., 2F] to [..., 2, F]."""

    def rule(shape: Shape) -> Source:
        return Source(
            {name: (*shape[:-2], 2 * shape[-1])},
            lambda w: w.reshape(*shape[:-2], shape[-1], 2).swapaxes(-1, -2),
        )

    return rule


RULES: dict[str, Rule] = {
    "embed.embedding": _as_is("model.embed_tokens.weight"),
    "norm.scale": _as_is("model.norm.weight"),
    "head.embedding": _as_is("lm_head.weight"),
    "input_norm.scale": _as_is("input_layernorm.weight"),
    "attention.qkv": _qkv("self_attn.{}_proj.weight"),
    "attention.qkv_bias": _qkv_bias("self_attn.{}_proj.bias"),
    "attention.q_norm.scale": _as_is("self_attn.q_norm.weight"),
    "attention.k_norm.scale": _as_is("self_attn.k_norm.weight"),
    "attention.kv_scales": _kv_scales("self_attn.{}_scale"),
    "attention.sinks": _as_is("self_attn.sinks"),
    "attention.out": _out("self_attn.o_proj.weight"),
    "attention.out_bias": _as_is("self_attn.o_proj.bias"),
    "post_attention_norm.scale": _as_is("post_attention_layernorm.weight"),
    "pre_feedforward_norm.scale": _as_is("pre_feedforward_layernorm.weight"),
    "post_feedforward_norm.scale": _as_is("post_feedforward_layernorm.weight"),
    "mlp.gate_up": _gate_up("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.gate_up_bias": _gate_up("mlp.gate_proj.bias", "mlp.up_proj.bias"),
    "mlp.down": _as_is("mlp.down_proj.weight"),
    "mlp.down_bias": _as_is("mlp.down_proj.bias"),
}

_MOE: dict[str, Rule] = {
    "moe.router": _as_is("mlp.gate.weight"),
    "moe.gate_up": _experts(
        _inputs_first(
            _gate_up("mlp.experts.{0}.gate_proj.weight", "mlp.experts.{0}.up_proj.weight")
        )
    ),
    "moe.down": _experts(_inputs_first(_as_is("mlp.experts.{}.down_proj.weight"))),
}
_DEEPSEEK_MOE: dict[str, Rule] = {
    **_MOE,
    "moe.choice_bias": _as_is("mlp.gate.e_score_correction_bias"),
    "moe.shared.gate_up": _gate_up(
        "mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"
    ),
    "moe.shared.down": _as_is("mlp.shared_experts.down_proj.weight"),
}

FAMILY_RULES: dict[str, dict[str, Rule]] = {
    "Phi3ForCausalLM": {
        "attention.qkv": _fused_qkv("self_attn.qkv_proj.weight"),
        "mlp.gate_up": _fused_gate_up("mlp.gate_up_proj.weight"),
    },
    "MixtralForCausalLM": {
        "moe.router": _as_is("block_sparse_moe.gate.weight"),
        "moe.gate_up": _experts(
            _inputs_first(
                _gate_up(
                    "block_sparse_moe.experts.{0}.w1.weight",
                    "block_sparse_moe.experts.{0}.w3.weight",
                )
            )
        ),
        "moe.down": _experts(_inputs_first(_as_is("block_sparse_moe.experts.{}.w2.weight"))),
    },
    "Qwen3MoeForCausalLM": _MOE,
    "Qwen2MoeForCausalLM": {
        **_MOE,
        "moe.shared.gate_up": _gate_up(
            "mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.up_proj.weight"
        ),
        "moe.shared.down": _as_is("mlp.shared_expert.down_proj.weight"),
        "moe.shared_gate": _one_output("mlp.shared_expert_gate.weight"),
    },
    "Glm4MoeForCausalLM": _DEEPSEEK_MOE,
    "GraniteMoeHybridForCausalLM": {
        "mlp.gate_up": _fused_gate_up("shared_mlp.input_linear.weight"),
        "mlp.down": _as_is("shared_mlp.output_linear.weight"),
    },
    "GptOssForCausalLM": {
        "moe.router": _as_is("mlp.router.weight"),
        "moe.router_bias": _as_is("mlp.router.bias"),
        "moe.gate_up": _interleaved("mlp.experts.gate_up_proj"),
        "moe.gate_up_bias": _interleaved("mlp.experts.gate_up_proj_bias"),
        "moe.down": _as_is("mlp.experts.down_proj"),
        "moe.down_bias": _as_is("mlp.experts.down_proj_bias"),
    },
}

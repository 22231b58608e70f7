"""How the tensors of a checkpoint, under Hugging Face's names, become a model's parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from jaxserve.config import ModelConfig

Path = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where one parameter comes from.

    Args:
        names: the checkpoint tensors, each [out, in] as Hugging Face stores linear weights.
        build: joins them into the parameter.
    """

    names: tuple[str, ...]
    build: Callable[..., np.ndarray]


def _as_is(x: np.ndarray) -> np.ndarray:
    return x


def llama_sources(config: ModelConfig) -> dict[Path, Source]:
    """Parameter path -> source, for LlamaForCausalLM."""
    hidden, kv_heads, head_dim = (
        config.hidden_size,
        config.num_key_value_heads,
        config.head_dim,
    )
    group = config.num_attention_heads // kv_heads

    def qkv(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        heads = [w.reshape(kv_heads, -1, head_dim, hidden) for w in (q, k, v)]
        joined = np.concatenate(heads, axis=1)  # [K, G+2, D, E]
        assert joined.shape[1] == group + 2
        return joined.transpose(3, 0, 1, 2)

    def out(w: np.ndarray) -> np.ndarray:
        return w.T.reshape(-1, head_dim, hidden)

    def gate_up(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return np.stack([gate.T, up.T], axis=1)

    sources: dict[Path, Source] = {
        ("embed", "embedding"): Source(("model.embed_tokens.weight",), _as_is),
        ("norm", "scale"): Source(("model.norm.weight",), _as_is),
    }
    if not config.tie_word_embeddings:
        sources[("head", "embedding")] = Source(("lm_head.weight",), _as_is)
    for i in range(config.num_hidden_layers):

        def name(*parts: str, i: int = i) -> tuple[str, ...]:
            return tuple(f"model.layers.{i}.{part}.weight" for part in parts)

        attention = name("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        for path, source in {
            ("input_norm", "scale"): Source(name("input_layernorm"), _as_is),
            ("attention", "qkv"): Source(attention, qkv),
            ("attention", "out"): Source(name("self_attn.o_proj"), out),
            ("post_attention_norm", "scale"): Source(name("post_attention_layernorm"), _as_is),
            ("mlp", "gate_up"): Source(name("mlp.gate_proj", "mlp.up_proj"), gate_up),
            ("mlp", "down"): Source(name("mlp.down_proj"), np.transpose),
        }.items():
            sources[("layers", i, *path)] = source
    return sources


WEIGHT_MAPS: dict[str, Callable[[ModelConfig], dict[Path, Source]]] = {
    "LlamaForCausalLM": llama_sources
}

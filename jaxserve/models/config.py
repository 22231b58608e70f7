"""ModelConfig: a model's sizes and options, independent of the file format. Imports no jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxserve.errors import CheckpointError

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor (kaiokendev 2023; Chen et al. 2023)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies divided by a factor, high ones kept, a ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, section 3).

    Args:
        attention_factor: on cosines and sines.
        truncate: round the ramp's ends to whole dimensions.
    """

    factor: float
    original_context: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (Ding et al. 2024): a factor for each frequency, one set within the original
    context and one beyond it.

    Cached keys can't be rotated again when a sequence grows past the original context, so all
    sequences use the long set if the model is served with a longer context than that.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_context: int
    attention_factor: float


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding.

    Args:
        theta: base of the frequencies.
        rotated: share of the head's dimensions that are rotated, beginning with the first.
    """

    theta: float = 10_000.0
    rotated: float = 1.0
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class QueryScaling:
    """Queries grow with their positions p, so that attention stays as sharp in longer contexts:
    by 1 + beta * log(1 + floor((p + offset) / interval)) (Llama 4, Mistral)."""

    beta: float
    interval: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Options in which the layers of a model may differ.

    Args:
        rope: None: queries and keys aren't rotated.
        window: a token attends to the last `window` tokens, itself included; None: to all.
        experts: whether the feed-forward part is a mixture of experts.
        query_scaling: None: queries don't depend on their positions but by rope.
    """

    rope: RopeConfig | None = RopeConfig()
    window: int | None = None
    experts: bool = False
    query_scaling: QueryScaling | None = None


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """A mixture of experts.

    Args:
        intermediate_size: of one expert.
        renormalize: the weights of a token's chosen experts sum to 1.
        scores: of the router's logits; with sigmoids a bias is added for the choice alone.
        groups, kept_groups: experts are in groups of equal size, and the chosen ones in the best.
        scale: on the weights of the chosen experts.
        shared_size: intermediate size of the MLP that all tokens go through; 0: there is none.
        shared_gate: its output is weighted by a sigmoid of the token.
        alpha, limit: of gpt-oss's clamped unit.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    renormalize: bool = True
    scores: Literal["softmax", "sigmoid"] = "softmax"
    groups: int = 1
    kept_groups: int = 1
    scale: float = 1.0
    shared_size: int = 0
    shared_gate: bool = False
    alpha: float = 1.702
    limit: float = 7.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's sizes and options, under Hugging Face's names where it has them.

    Args:
        architecture: the class name in config.json's `architectures`, as LlamaForCausalLM.
        layers: one entry a layer, in order.
        max_position_embeddings: context length in tokens.
        attention_scale: on query . key; None is head_dim ** -0.5.
        attention_softcap, final_softcap: scores, and logits, become cap * tanh(x / cap).
        kv_scales: whether the checkpoint has scales for a KV cache of 8 bits.
        attention_bias: on the attention's projections; the family decides on which.
        mlp_bias: on the projections of a gated MLP.
        qk_norm: on each head of queries and keys, in families that leave the choice.
        embedding_scale: on embeddings, rounded to their type.
        residual_scale: on what attention and MLP add.
        logits_divisor: of the logits.
        draft_layers: layers after the last, which guess further tokens and aren't loaded.
        eos_token_ids: ids that end an output.
        unknown_fields: names in config.json that nothing reads.

    Raises:
        CheckpointError: two fields contradict each other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerConfig, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    activation: Activation = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    embedding_scale: float | None = None
    residual_scale: float = 1.0
    logits_divisor: float = 1.0
    draft_layers: int = 0
    kv_scales: bool = False
    attention_scale: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    moe: MoEConfig | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    unknown_fields: tuple[str, ...] = ()

    @property
    def num_hidden_layers(self) -> int:
        return len(self.layers)

    @property
    def rope_dim(self) -> int:
        """Size of the part of a head of which rope rotates a share."""
        return self.head_dim

    def __post_init__(self) -> None:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise CheckpointError(
                f"num_attention_heads ({heads}) isn't a multiple of num_key_value_heads "
                f"({kv_heads})"
            )
        if self.head_dim < 1:
            raise CheckpointError(
                f"hidden_size ({self.hidden_size}) is less than num_attention_heads ({heads})"
            )
        for rope in {layer.rope for layer in self.layers if layer.rope is not None}:
            self._check_rope(rope)
        moe = self.moe
        if moe is not None and moe.experts_per_token > moe.num_experts:
            raise CheckpointError(
                f"num_experts_per_tok ({moe.experts_per_token}) is more than the number of experts "
                f"({moe.num_experts})"
            )
        if moe is not None and (moe.num_experts % moe.groups or moe.kept_groups > moe.groups):
            raise CheckpointError(
                f"{moe.num_experts} experts can't be in {moe.groups} groups (n_group) of equal "
                f"size, of which {moe.kept_groups} (topk_group) are kept"
            )

    def _check_rope(self, rope: RopeConfig) -> None:
        size = int(self.head_dim * rope.rotated)
        if size % 2 or not 2 <= size <= self.head_dim:
            raise CheckpointError(
                f"{size} of a head's {self.head_dim} dimensions (head_dim) are to be rotated; it "
                "must be an even number from 2 to head_dim"
            )
        if isinstance(rope.scaling, LongRopeScaling):
            for name, factors in (
                ("short_factor", rope.scaling.short_factors),
                ("long_factor", rope.scaling.long_factors),
            ):
                if len(factors) != size // 2:
                    raise CheckpointError(
                        f"{name} has {len(factors)} entries, but {size // 2} pairs of dimensions "
                        "are rotated"
                    )

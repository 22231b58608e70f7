"""Every setting, once: frozen, validated, with units."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxserve.errors import ConfigError, UnsupportedModelError

MIB = 1024**2
GIB = 1024**3

DEFAULT_MODEL = "smollm2-135m"


def cache_dir() -> Path:
    """Where fetched models and compiled programs are kept: $JAXSERVE_CACHE, or jaxserve/ in
    $XDG_CACHE_HOME or ~/.cache. It may not exist yet."""
    if own := os.environ.get("JAXSERVE_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jaxserve"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model, under Hugging Face's names.

    Args:
        architecture: the class name in config.json's `architectures`, as LlamaForCausalLM.
        max_position_embeddings: context length in tokens.
        eos_token_ids: ids that end an output.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads config.json's contents.

        Raises:
            UnsupportedModelError: a field asks for something that isn't implemented, or is missing.
        """
        # transformers 5 nests rope settings; older files keep them at the top.
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        refused = {
            "rope_scaling type": (rope_type, ("default",)),
            "hidden_act": (config.get("hidden_act", "silu"), ("silu",)),
            "attention_bias": (bool(config.get("attention_bias", False)), (False,)),
            "mlp_bias": (bool(config.get("mlp_bias", False)), (False,)),
        }
        for name, (value, known) in refused.items():
            if value not in known:
                raise UnsupportedModelError(
                    f"config.json has {name} = {value!r}; supported: {', '.join(map(str, known))}"
                )
        eos = config.get("eos_token_id")
        try:
            heads = config["num_attention_heads"]
            return cls(
                architecture=(config.get("architectures") or ["unknown"])[0],
                vocab_size=config["vocab_size"],
                hidden_size=config["hidden_size"],
                intermediate_size=config["intermediate_size"],
                num_hidden_layers=config["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                max_position_embeddings=config["max_position_embeddings"],
                rms_norm_eps=config.get("rms_norm_eps", 1e-6),
                rope_theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
                tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
                bos_token_id=config.get("bos_token_id"),
                eos_token_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
            )
        except KeyError as missing:
            raise UnsupportedModelError(f"config.json has no {missing}") from None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine runs one model.

    Args:
        model: a local folder, a GGUF file, a hub name (`owner/name`), or a name that
            `jaxserve pull` knows.
        dtype: of weights, activations and KV cache; "auto" is bfloat16 on a GPU, float32 on a CPU
            (bfloat16 matmuls are several times slower there).
        max_model_len: most tokens of prompt and output together; None takes the model's own.
        max_num_seqs: most sequences that run at once; None is 256 on a GPU, 32 on a CPU.
        max_num_batched_tokens: token budget of a step; None is 8,192 on a GPU, 512 on a CPU.
        block_size: tokens a KV block holds.
        kv_cache_memory: bytes of the KV pool; None is 1 GiB on a CPU, and on a GPU what
            gpu_memory_utilization leaves.
        gpu_memory_utilization: share of the GPU's memory that the engine may use.
        enable_prefix_caching: reuse the KV of prompts that begin alike.
        overlap: plan and dispatch a step while the one before it runs.
        forbid_compile: raise instead of compiling after ready.
        seed: base of the seeds of requests that bring none.
    """

    model: str = DEFAULT_MODEL
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int = 16
    kv_cache_memory: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    overlap: bool = True
    forbid_compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ConfigError(
                f"dtype must be auto, float32, bfloat16 or float16; it was {self.dtype!r}"
            )
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "kv_cache_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; it was {value}")
        if self.block_size < 8 or self.block_size & (self.block_size - 1):
            raise ConfigError(
                f"block_size must be a power of two from 8 up; it was {self.block_size}"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"gpu_memory_utilization must be in (0, 1]; it was {self.gpu_memory_utilization}"
            )


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the HTTP server listens.

    Args:
        served_model_names: names that requests may use; the first is the one reported.
            Empty means the model's own name.
        max_body_bytes: larger request bodies get 413.
        max_choices: most choices (prompts of a batch) in one request.
        drain_timeout: seconds that running requests have to finish once a stop is asked for.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = field(default=())
    max_body_bytes: int = 8 * MIB
    max_choices: int = 128
    drain_timeout: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port must be between 0 and 65535; it was {self.port}")
        for name in ("max_body_bytes", "max_choices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; it was {getattr(self, name)}")
        if not 0.0 <= self.drain_timeout < math.inf:
            raise ConfigError(
                f"drain_timeout must be 0 seconds or more; it was {self.drain_timeout}"
            )

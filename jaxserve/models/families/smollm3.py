"""SmolLM3 (Hugging Face 2025): Llama, with no rope in every fourth layer (Yang et al. 2025)."""

from __future__ import annotations

from jaxserve.errors import CheckpointError
from jaxserve.models.config import LayerConfig, ModelConfig
from jaxserve.models.decoder import Decoder
from jaxserve.models.families.llama import LlamaLayer
from jaxserve.models.hf_config import HFConfig, layer_types, layers, read_config, require, rope


class SmolLM3ForCausalLM(Decoder):
    layer_class = LlamaLayer

    @staticmethod
    def read_config(hf: HFConfig) -> ModelConfig:
        interval = hf["no_rope_layer_interval"]
        every = hf["no_rope_layers"]  # 1 where a layer has rope, despite the name
        if every is not None and len(every) != require(hf, "num_hidden_layers"):
            raise CheckpointError(f"no_rope_layers has {len(every)} entries, not one a layer")
        window = hf["sliding_window"] if hf["use_sliding_window"] else None

        def has_rope(i: int) -> bool:
            return bool(every[i]) if every is not None else (i + 1) % interval != 0

        sliding = layer_types(hf, lambda i: window is not None and not has_rope(i))
        rotation = rope(hf, theta=2_000_000.0)
        return read_config(
            hf,
            layers=layers(
                hf,
                lambda i: LayerConfig(
                    rotation if has_rope(i) else None, window if sliding[i] else None
                ),
            ),
        )

"""Makes config_fields.json with transformers, no weights and none of this project's code:

    python tests/golden/make_config_fields.py

For each architecture the fields of its configuration class that its base class hasn't, with their
defaults, and `rope_parameters` as an instance without arguments has them; `common` holds the
fields of the base class and the generation settings that it takes out of old files.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

MODEL_TYPES = (
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "granitemoehybrid",
    "llama",
    "ministral3",
    "mistral",
    "mixtral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "smollm3",
)


def default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def main() -> None:
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    families = {}
    for model_type in MODEL_TYPES:
        kind = type(AutoConfig.for_model(model_type))
        own = {f.name: default(f) for f in dataclasses.fields(kind) if f.name not in common}
        architecture = AutoModelForCausalLM._model_mapping[kind].__name__
        families[architecture] = {
            "class": kind.__name__,
            "fields": own,
            "rope_parameters": kind().rope_parameters,
        }
    generation = GenerationConfig._get_default_generation_params()
    recorded = {
        "transformers": transformers.__version__,
        "common": sorted(common | set(generation)),
        "families": families,
    }
    out = Path(__file__).with_name("config_fields.json")
    out.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    print({name: len(family["fields"]) for name, family in families.items()})


if __name__ == "__main__":
    main()

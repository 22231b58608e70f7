"""The model class of each `architectures` entry of config.json."""

from __future__ import annotations

from dataclasses import replace

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.config import ModelConfig
from jaxserve.models.config_fields import FAMILY_FIELDS
from jaxserve.models.decoder import Decoder
from jaxserve.models.families.gemma import Gemma2ForCausalLM, Gemma3ForCausalLM
from jaxserve.models.families.glm import Glm4MoeForCausalLM
from jaxserve.models.families.gpt_oss import GptOssForCausalLM
from jaxserve.models.families.granite import (
    GraniteForCausalLM,
    GraniteMoeHybridForCausalLM,
)
from jaxserve.models.families.llama import LlamaForCausalLM
from jaxserve.models.families.mistral import (
    Ministral3ForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
)
from jaxserve.models.families.olmo2 import Olmo2ForCausalLM, Olmo3ForCausalLM
from jaxserve.models.families.phi import Phi3ForCausalLM
from jaxserve.models.families.qwen import (
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
)
from jaxserve.models.families.smollm3 import SmolLM3ForCausalLM
from jaxserve.models.fields import OBJECT, check
from jaxserve.models.hf_config import FIELDS, HFConfig
from jaxserve.models.wrappers import WRAPPERS, text_config

_CLASSES: tuple[type[Decoder], ...] = (
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Glm4MoeForCausalLM,
    GptOssForCausalLM,
    GraniteForCausalLM,
    GraniteMoeHybridForCausalLM,
    LlamaForCausalLM,
    Ministral3ForCausalLM,
    MistralForCausalLM,
    MixtralForCausalLM,
    Olmo2ForCausalLM,
    Olmo3ForCausalLM,
    Phi3ForCausalLM,
    Qwen2ForCausalLM,
    Qwen2MoeForCausalLM,
    Qwen3ForCausalLM,
    Qwen3MoeForCausalLM,
    SmolLM3ForCausalLM,
)
# Null means none in these, whatever the family's default; elsewhere it means the default.
_NULLABLE = (
    *("sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
    *("num_key_value_heads", "head_dim"),
)
ARCHITECTURES: dict[str, type[Decoder]] = {cls.__name__: cls for cls in _CLASSES}


def model_class(architecture: str) -> type[Decoder]:
    """The model class of an architecture.

    Raises:
        UnsupportedModelError: lists what is supported.
    """
    try:
        return ARCHITECTURES[architecture]
    except KeyError:
        raise UnsupportedModelError(
            f"architecture {architecture!r} is not supported; "
            f"supported: {', '.join(sorted((*ARCHITECTURES, *WRAPPERS)))}"
        ) from None


def config_from_hf(hf: HFConfig) -> ModelConfig:
    """Reads config.json's contents.

    Raises:
        UnsupportedModelError: an unknown architecture, or a field that asks for something that
            isn't implemented, or one that is missing.
        CheckpointError: a field has the wrong type or an impossible value.
    """
    check(hf, {"architectures": FIELDS["architectures"], "text_config": OBJECT})
    hf = text_config(hf)
    check(hf, FIELDS)
    architecture = (hf.get("architectures") or ["unknown"])[0]
    cls, fields = model_class(architecture), FAMILY_FIELDS[architecture]
    fields.check(hf)
    given = {name: value for name, value in hf.items() if value is not None or name in _NULLABLE}
    config = cls.read_config({**fields.honoured, **given})
    return replace(config, unknown_fields=fields.unknown(hf))

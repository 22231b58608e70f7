"""Which class serves which `architectures` entry of config.json."""

from __future__ import annotations

from jaxserve.config import ModelConfig
from jaxserve.errors import UnsupportedModelError
from jaxserve.models.llama import LlamaForCausalLM

ARCHITECTURES: dict[str, type[LlamaForCausalLM]] = {"LlamaForCausalLM": LlamaForCausalLM}


def model_class(config: ModelConfig) -> type[LlamaForCausalLM]:
    """The model class for a config.

    Raises:
        UnsupportedModelError: lists what is supported.
    """
    try:
        return ARCHITECTURES[config.architecture]
    except KeyError:
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not supported; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        ) from None

"""Language models inside of models that read images too: their text part is loaded, and the rest of
the config and of the tensors is left alone. Requests with images are refused by the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.errors import UnsupportedModelError

# The architecture of each text part, by its model_type.
_TEXT_PARTS: Mapping[str, Mapping[str, str]] = {
    "Gemma3ForConditionalGeneration": {"gemma3_text": "Gemma3ForCausalLM"},
    "Mistral3ForConditionalGeneration": {
        "ministral3": "Ministral3ForCausalLM",
        "mistral": "MistralForCausalLM",
    },
}
WRAPPERS = tuple(_TEXT_PARTS)
# From the whole config, where the text part's has none.
_OF_THE_WHOLE = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "quantization_config")
# Both orders of the names that transformers has written.
_TEXT = ("language_model.", "model.language_model.")
_OTHERS = ("vision_tower.", "multi_modal_projector.")


def text_config(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config of the text part; of another model, its config as it is.

    Raises:
        UnsupportedModelError: a text part that isn't implemented.
    """
    wrapper = (hf.get("architectures") or ["unknown"])[0]
    if wrapper not in _TEXT_PARTS:
        return hf
    text: dict[str, Any] = dict(hf.get("text_config") or {})
    known, kind = _TEXT_PARTS[wrapper], text.get("model_type")
    if not isinstance(kind, str) or kind not in known:
        raise UnsupportedModelError(
            f"text_config of {wrapper} has the model_type {kind!r}; supported: {', '.join(known)}"
        )
    whole = {name: hf[name] for name in _OF_THE_WHOLE if name in hf}
    return {**whole, **text, "architectures": [known[kind]]}


def text_name(tensor: str) -> str | None:
    """A tensor's name in the text part alone, as of a model without a wrapper; None if it belongs
    to another part."""
    if tensor.removeprefix("model.").startswith(_OTHERS):
        return None
    for prefix in _TEXT:
        if tensor.startswith(prefix):
            rest = tensor.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    return tensor

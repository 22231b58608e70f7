"""Models that read images too: which config and which tensors are their text part's; the goldens of
families/*_wrapper.npz have the logits."""

from __future__ import annotations

import pytest

from jaxserve.errors import UnsupportedModelError
from jaxserve.models.registry import config_from_hf
from jaxserve.models.wrappers import text_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("language_model.model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.patch_conv.weight", None),
        ("model.vision_tower.patch_conv.weight", None),
        ("model.multi_modal_projector.linear_1.weight", None),
        ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("embed_tokens.weight", "embed_tokens.weight"),
    ],
)
def test_names_of_both_orders(name: str, expected: str | None) -> None:
    assert text_name(name) == expected


def test_a_text_part_of_another_family_is_refused() -> None:
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": {"model_type": "mamba"},
    }
    with pytest.raises(UnsupportedModelError, match="model_type 'mamba'; supported: ministral3"):
        config_from_hf(config)

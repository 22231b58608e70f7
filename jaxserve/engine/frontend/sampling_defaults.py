"""The sampling settings that a model's makers recommend, for what a request leaves unset."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from checkpoints.generation_config import FILE, read_sampling_defaults
from checkpoints.packaged_models import PACKAGED
from jaxserve.config import EngineConfig
from jaxserve.sampling.params import SamplingParams

log = logging.getLogger(__name__)


def sampling_defaults(config: EngineConfig, path: Path) -> dict[str, Any]:
    """Values for SamplingParams' fields from the model's generation_config.json or, for a packaged
    model, from its card, if the config wants them; logged, as are those of SamplingParams where
    there are none.

    Raises:
        CheckpointError: the file is damaged.
    """
    defaults, source = {}, FILE  # type: dict[str, Any], str
    if config.generation_config == "auto":
        defaults = read_sampling_defaults(path)
        if not defaults and config.model in PACKAGED and not Path(config.model).exists():
            defaults, source = dict(PACKAGED[config.model].sampling), "card"
    if defaults:
        log.warning(
            "requests that don't say otherwise are sampled with %s, from the model's %s; "
            "--generation-config none ignores it",
            describe(defaults),
            source,
        )
    else:
        log.info(
            "requests that don't say otherwise are sampled with %s, jaxserve's own",
            describe(defaults),
        )
    return defaults


def describe(defaults: dict[str, Any]) -> str:
    """What holds where a request says nothing, in words for people."""
    own = SamplingParams()
    values = {"temperature": own.temperature, "top_p": own.top_p} | defaults
    return ", ".join(f"{name}={value}" for name, value in values.items())

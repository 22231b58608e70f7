"""How the model's makers sample: what holds where a request says nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from checkpoints.generation_config import FILE, read_sampling_defaults
from jaxserve.config import EngineConfig

log = logging.getLogger(__name__)


def sampling_defaults(config: EngineConfig, path: Path) -> dict[str, Any]:
    """Values of SamplingParams' fields by the model's own file, as the config has it; logged.

    Raises:
        CheckpointError: the file is damaged.
    """
    defaults = read_sampling_defaults(path) if config.generation_config == "auto" else {}
    if defaults:
        log.warning(
            "requests that don't say otherwise are sampled with %s, by the model's %s; "
            "--generation-config none leaves it aside",
            ", ".join(f"{name}={value}" for name, value in defaults.items()),
            FILE,
        )
    return defaults

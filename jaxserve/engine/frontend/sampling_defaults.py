"""The sampling settings that the model's own files recommend, for what a request leaves unset."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from checkpoints.generation_config import FILE, read_sampling_defaults
from jaxserve.config import EngineConfig

log = logging.getLogger(__name__)


def sampling_defaults(config: EngineConfig, path: Path) -> dict[str, Any]:
    """Values for SamplingParams' fields from the model's generation_config.json, if the config
    wants them; logged.

    Raises:
        CheckpointError: the file is damaged.
    """
    defaults = read_sampling_defaults(path) if config.generation_config == "auto" else {}
    if defaults:
        log.warning(
            "requests that don't say otherwise are sampled with %s, from the model's %s; "
            "--generation-config none ignores it",
            ", ".join(f"{name}={value}" for name, value in defaults.items()),
            FILE,
        )
    return defaults

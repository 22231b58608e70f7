"""generation_config.json: the ids that end an output, and the model's sampling defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoints.json_file import read_json
from jaxserve.models.fields import TOKEN_IDS, number, token_ids, whole

FILE = "generation_config.json"
# The fields that vLLM reads too; as there, `do_sample` is ignored.
_SAMPLING = {
    "temperature": number(0, 2),
    "top_p": number(0, 1, above=True),
    "top_k": whole(),
    "min_p": number(0, 1),
    "repetition_penalty": number(0, above=True),
}


def read_eos_token_ids(path: Path) -> tuple[int, ...]:
    """Ids that end an output; empty without the file.

    Raises:
        CheckpointError: the file is damaged; names the field.
    """
    settings = read_json(path / FILE, {"eos_token_id": TOKEN_IDS}, optional=True)
    return token_ids(settings.get("eos_token_id"))


def read_sampling_defaults(path: Path) -> dict[str, Any]:
    """The model's values for fields of SamplingParams that a request leaves unset.

    Args:
        path: a checkpoint. Only a Hugging Face folder, or one converted from one, has any.

    Raises:
        CheckpointError: the file is damaged, or a value is out of range; names the field.
    """
    settings = read_json(path / FILE, _SAMPLING, optional=True) if path.is_dir() else {}
    return {name: settings[name] for name in _SAMPLING if settings.get(name) is not None}

"""The YAML file that --config names: settings by the names of their flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxserve.errors import ConfigError


def read_settings(file: str) -> dict[str, Any]:
    """The settings by name. A value is a text, a number, true or false, null, or a list of texts.

    Raises:
        ConfigError: the file can't be read, or isn't a mapping of names to such values.
    """
    import yaml  # only where there is such a file

    try:
        settings = yaml.safe_load(Path(file).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {file} can't be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the config file {file} isn't valid YAML: {error}") from None
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(name, str) for name in settings):
        raise ConfigError(
            f"the config file {file} must map names of flags to values, as `max-num-seqs: 8`"
        )
    for name, value in settings.items():
        plain = value if isinstance(value, list) else [value]
        if not all(isinstance(v, str | int | float | bool | None) for v in plain):
            raise ConfigError(
                f"{name} in {file} must be a text, a number, true or false, or a list of texts"
            )
    return settings

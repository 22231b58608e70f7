from __future__ import annotations

import argparse
import dataclasses

import pytest

from jaxserve.bench.settings import DatasetConfig, LatencyConfig, LoadConfig, StartupConfig
from jaxserve.cli import flags
from jaxserve.errors import ConfigError


@pytest.mark.parametrize("settings", [DatasetConfig, LatencyConfig, LoadConfig, StartupConfig])
def test_every_setting_is_a_flag_with_help(settings: type) -> None:
    parser = argparse.ArgumentParser()
    flags.add_flags(parser, settings)
    assert flags.build(settings, parser.parse_args([])) == settings()
    assert all(field.metadata["help"] for field in dataclasses.fields(settings))


def test_limits_of_a_good_request() -> None:
    assert LoadConfig(goodput=("ttft:500", "e2el:1e4")).limits_ms() == {"ttft": 500, "e2el": 1e4}
    for wrong in ("ttft", "itl:5", "tpot:fast", "tpot:-1"):
        with pytest.raises(ConfigError, match="goodput takes ttft, tpot, e2el"):
            LoadConfig(goodput=(wrong,))


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"request_rate": 0.0}, {"burstiness": -1.0}, {"base_url": "host:8000"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            LoadConfig(**wrong)
    with pytest.raises(ConfigError, match="need each other"):
        DatasetConfig("sharegpt-file")
    with pytest.raises(ConfigError, match="no prefix comes twice"):
        DatasetConfig("shared-prefix", num_prompts=2, prefix_groups=2)

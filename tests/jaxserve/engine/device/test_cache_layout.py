"""How layers are cut into cache groups."""

from __future__ import annotations

import pytest

from jaxserve.engine.device.cache_layout import CacheLayout
from jaxserve.models.cache import CacheSpec
from scheduler import CacheGroup

FAR, NEAR = CacheSpec(2, 64), CacheSpec(2, 64, window=512)
GEMMA3_270M = ((NEAR,) * 5 + (FAR,)) * 3
GEMMA3_4B = ((NEAR,) * 5 + (FAR,)) * 5 + (NEAR,) * 4


def choose(specs: tuple[CacheSpec, ...], max_model_len: int = 32_768) -> CacheLayout:
    return CacheLayout.choose(specs, 16, max_model_len, 512)


@pytest.mark.parametrize(
    ("specs", "full", "windowed", "buffers"),
    [
        ((FAR,) * 30, 1, 0, 30),
        ((NEAR,) * 32, 0, 1, 32),
        (GEMMA3_270M, 1, 5, 3),
        (GEMMA3_4B, 1, 6, 5),  # the last group has four layers
        ((NEAR, FAR) * 12, 1, 1, 12),
        # A few windows among many full layers aren't worth a group for each few.
        ((FAR,) * 29 + (NEAR,), 1, 0, 30),
        ((FAR, CacheSpec(4, 64, window=512)), 1, 0, 2),  # unequal sizes
    ],
)
def test_groups_and_buffers(
    specs: tuple[CacheSpec, ...], full: int, windowed: int, buffers: int
) -> None:
    layout = choose(specs)
    assert (
        sorted(layout.groups, key=lambda g: g.window or 0)
        == [CacheGroup()] * full + [CacheGroup(512)] * windowed
    )
    assert len(layout.buffers) == buffers
    # No two layers of a group share a buffer, and all see what their group keeps.
    places = list(zip(layout.group_of, layout.buffer_of, strict=True))
    assert len(set(places)) == len(specs)
    for spec, (group, buffer) in zip(specs, places, strict=True):
        kept, held = layout.groups[group].window, layout.buffers[buffer]
        assert kept is None or kept == spec.window
        assert (held.num_kv_heads, held.head_dim) == (spec.num_kv_heads, spec.head_dim)


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert choose(GEMMA3_270M, max_model_len=512).groups == (CacheGroup(),)
    assert choose((NEAR,) * 2, max_model_len=512).groups == (CacheGroup(),)


@pytest.mark.parametrize("specs", [GEMMA3_270M, GEMMA3_4B[:30]])
def test_each_repeat_of_a_pattern_has_a_buffer_of_its_own(specs: tuple[CacheSpec, ...]) -> None:
    layout = choose(specs)
    for first in range(0, len(specs), 6):
        assert set(layout.buffer_of[first : first + 6]) == {first // 6}
        assert layout.group_of[first : first + 6] == layout.group_of[:6]

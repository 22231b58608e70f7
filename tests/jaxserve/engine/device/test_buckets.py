"""The bucket table: every step that the scheduler may plan fits one bucket."""

from __future__ import annotations

import pytest

from jaxserve.engine.device.buckets import Bucket, BucketTable
from jaxserve.errors import ConfigError


@pytest.mark.parametrize(("seqs", "budget"), [(1, 2), (1, 64), (7, 64), (32, 512), (256, 8192)])
def test_every_plan_fits(seqs: int, budget: int) -> None:
    table = BucketTable.build(seqs, budget)
    for rows in range(1, seqs + 1):
        for tokens in {rows, *range(rows, budget + 1, max(1, budget // 50)), budget}:
            bucket = table.pick(tokens, rows)
            assert bucket in table.all
            assert bucket.tokens >= tokens
            assert bucket.rows >= rows
            assert bucket.decode == (tokens == rows)


def test_a_full_decode_is_not_padded() -> None:
    assert BucketTable.build(24, 512).pick(24, 24) == Bucket(24, 24)


@pytest.mark.parametrize("budget", [32, 64])
def test_a_budget_without_room_for_prompts_is_refused(budget: int) -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens"):
        BucketTable.build(64, budget)


def test_a_short_step_is_not_padded_to_a_large_budget() -> None:
    assert BucketTable.build(256, 8192).pick(300, 5).tokens == 512


@pytest.mark.parametrize(("seqs", "budget", "guesses"), [(1, 16, 8), (7, 64, 4), (32, 512, 8)])
def test_steps_that_verify_guesses_share_the_layers_of_decodes(
    seqs: int, budget: int, guesses: int
) -> None:
    table = BucketTable.build(seqs, budget, guesses)
    assert table.most_guess_tokens == max(seqs, 16)
    for tokens in range(1, table.most_guess_tokens + 1):
        bucket = table.pick_verify(tokens)
        assert bucket in table.all
        assert bucket.decode
        assert bucket.drawn == bucket.tokens >= tokens
        assert seqs == 1 or bucket.plain in table.decode
    assert BucketTable.build(seqs, budget).verify == ()

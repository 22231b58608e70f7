"""The block pool alone: counts, order of reuse, and which blocks stay in the cache."""

from __future__ import annotations

import pytest

from scheduler.blocks.pool import NULL_BLOCK, BlockPool


def digest(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_all_but_the_null_block_can_be_taken() -> None:
    pool = BlockPool(5)
    blocks = pool.take_many(4)
    assert sorted(blocks) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 4)
    pool.release(blocks)
    assert (pool.num_free, pool.num_used) == (4, 0)


def test_the_same_block_freed_twice_is_an_error() -> None:
    pool = BlockPool(5)
    block = pool.take()
    pool.release([block])
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release([block])
    assert pool.num_free == 4


def test_null_blocks_are_never_counted() -> None:
    pool = BlockPool(5)
    pool.share([NULL_BLOCK])
    pool.release([NULL_BLOCK, NULL_BLOCK])
    assert pool.references(NULL_BLOCK) == 0
    assert pool.num_free == 4


def test_a_shared_block_is_free_after_its_last_release() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.share([block])
    pool.release([block])
    assert pool.num_used == 1
    pool.release([block])
    assert pool.num_used == 0


def test_unhashed_blocks_are_reused_before_cached_ones() -> None:
    pool = BlockPool(4)
    cached, plain, other = pool.take_many(3)
    pool.register(0, [cached], [digest(1)])
    pool.release([cached, plain, other])
    assert {pool.take(), pool.take()} == {plain, other}
    assert pool.find(0, digest(1)) == cached


def test_cached_blocks_are_evicted_in_the_order_in_which_they_were_freed() -> None:
    pool = BlockPool(4)
    blocks = pool.take_many(3)
    pool.register(0, blocks, [digest(1), digest(2), digest(3)])
    pool.release([blocks[1], blocks[2], blocks[0]])
    assert pool.take_many(3) == [blocks[1], blocks[2], blocks[0]]
    assert [pool.find(0, digest(n)) for n in (1, 2, 3)] == [None] * 3


def test_a_hit_uses_a_free_block_again_and_makes_it_the_last_to_be_evicted() -> None:
    pool = BlockPool(3)
    first, second = pool.take_many(2)
    pool.register(0, [first, second], [digest(1), digest(2)])
    pool.release([first, second])
    pool.share([first])
    assert pool.num_free == 1
    pool.release([first])
    assert pool.take() == second


def test_the_first_block_with_some_content_keeps_it() -> None:
    pool = BlockPool(3)
    first, second = pool.take_many(2)
    pool.register(0, [first], [digest(1)])
    pool.register(0, [second], [digest(1)])
    assert pool.find(0, digest(1)) == first
    assert not pool.is_exclusive(first)
    assert pool.is_exclusive(second)


def test_groups_find_their_own_blocks_only() -> None:
    pool = BlockPool(3, num_groups=2)
    first, second = pool.take_many(2)
    pool.register(0, [first], [digest(1)])
    assert pool.find(1, digest(1)) is None
    pool.register(1, [second], [digest(1)])
    pool.release([first, second])
    assert pool.take() == first
    assert (pool.find(0, digest(1)), pool.find(1, digest(1))) == (None, second)


def test_reset_clears_the_cache_unless_a_block_is_used() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.register(0, [block], [digest(1)])
    assert pool.reset() is False
    assert pool.find(0, digest(1)) == block
    pool.release([block])
    assert pool.reset() is True
    assert pool.find(0, digest(1)) is None
    assert pool.num_free == 2

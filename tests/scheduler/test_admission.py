"""Which requests start, and which are refused when they arrive."""

from __future__ import annotations

import pytest

from scheduler import QueueFullError, RequestTooLongError, SchedulerError
from tests.scheduler.harness import Loop, make_config


def test_a_prompt_whose_first_chunk_fits_waits_until_all_of_it_does() -> None:
    # Two prompts of six blocks in a pool of eight: by chunks both would start, and then preempt
    # each other for ever.
    loop = Loop(make_config(num_blocks=9, max_num_batched_tokens=8))
    loop.add_prompt("a", [1] * 24, max_tokens=2)
    second = loop.add_prompt("b", [2] * 24, max_tokens=2)
    for _ in range(3):
        loop.step()
        assert second.slot == -1
    loop.run()
    assert loop.scheduler.stats().preemptions == 0


def test_a_prompt_larger_than_the_pool_is_refused_with_the_limit() -> None:
    loop = Loop(make_config(num_blocks=9, max_model_len=1000))
    assert loop.scheduler.max_model_len == 32
    with pytest.raises(RequestTooLongError, match="32 tokens, all that the pool holds") as caught:
        loop.add_prompt("a", [1] * 33)
    assert caught.value.limit == 32
    full = loop.add_prompt("b", [1] * 32, max_tokens=5)
    loop.run()
    assert full.finish_reason == "length"
    assert len(full.output_token_ids) == 1  # whose KV needs no block


def test_a_prompt_longer_than_the_model_is_refused_with_the_limit() -> None:
    loop = Loop(make_config(max_model_len=20))
    with pytest.raises(RequestTooLongError, match=r"limit of 20 tokens$") as caught:
        loop.add_prompt("a", [1] * 21)
    assert caught.value.limit == 20
    assert not loop.scheduler.has_unfinished


def test_a_full_queue_refuses_requests() -> None:
    loop = Loop(make_config(max_queued_requests=2))
    loop.scheduler.check_queue()
    loop.add_prompt("a", [1] * 9)
    loop.scheduler.check_queue()
    with pytest.raises(QueueFullError, match="2 requests wait"):
        loop.scheduler.check_queue(num_elsewhere=1)
    loop.add_prompt("c", [1] * 9)
    with pytest.raises(QueueFullError, match="2 requests wait") as caught:
        loop.scheduler.check_queue()
    assert caught.value.limit == 2
    loop.step()
    loop.scheduler.check_queue(num_elsewhere=1)
    loop.run()


def test_an_id_in_use_an_empty_prompt_and_no_output_are_refused() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a")
    for name, changes in (("a", {}), ("b", {"prompt": []}), ("c", {"max_tokens": 0})):
        with pytest.raises(SchedulerError):
            loop.add_prompt(name, **changes)
    loop.run()
    loop.add_prompt("a")
    loop.run()


def test_small_requests_behind_a_giant_wait_no_longer_than_it() -> None:
    loop = Loop(make_config(num_blocks=9, max_num_seqs=4))
    loop.add_prompt("runs", [1] * 9, max_tokens=6)
    loop.step()
    giant = loop.add_prompt("giant", [2] * 24, max_tokens=2)
    small = loop.add_prompt("small", [3] * 2, max_tokens=2)
    while giant.slot == -1:
        assert small.slot == -1  # no other request takes the blocks that the giant waits for
        assert loop.step() is not None
    loop.step()
    assert small.finish_reason or small.slot >= 0
    loop.run()

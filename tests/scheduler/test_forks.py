"""Samples of one prompt, and beams: what they share, and what they copy."""

from __future__ import annotations

import pytest

from scheduler import SchedulerError
from scheduler.request import Status
from tests.scheduler.harness import Loop, make_config


def copies_of(loop: Loop) -> int:
    return sum(len(plan.copies) for plan in loop.plans)


@pytest.mark.parametrize("caching", [True, False])
def test_samples_share_the_full_blocks_and_copy_the_partial_one(caching: bool) -> None:
    loop = Loop(make_config(enable_prefix_caching=caching))
    loop.add_prompt("a", [1, 2, 3, 4, 5, 6, 0, 1, 2, 3], n=3)
    loop.step()
    plan = loop.step()
    first, *others = loop.sequences
    for other in others:
        assert other.tables[0][:2] == first.tables[0][:2]
        assert other.tables[0][2] != first.tables[0][2]
    assert sorted(source for source, _ in plan.copies) == [first.tables[0][2]] * 2
    assert [len(chunk.token_ids) for chunk in plan.chunks] == [1, 1]
    loop.run()
    outputs = {tuple(sequence.output_token_ids) for sequence in loop.sequences}
    assert len(outputs) == 3  # each has its own draws


def test_samples_whose_prompt_fills_its_blocks_copy_the_last() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 8, n=2)
    loop.step()
    assert len(loop.step().copies) == 1  # its last token is computed again to be sampled again
    loop.run()


def test_samples_need_no_copy_where_only_the_last_token_is_in_its_block() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", [1] * 9, n=3)
    loop.run()
    assert copies_of(loop) == 0


def test_samples_outlive_the_first() -> None:
    loop = Loop(make_config(max_num_batched_tokens=4))
    first = loop.add_prompt("a", [1] * 9, n=3)
    loop.step()
    loop.end(first)  # before its prompt was computed
    loop.run()
    assert [len(s.output_token_ids) for s in loop.sequences] == [0, 8, 8]


def test_abort_ends_all_samples() -> None:
    for steps in range(4):
        loop = Loop(make_config(max_num_seqs=2))
        loop.add_prompt("a", [1] * 9, n=3)
        for _ in range(steps):
            loop.step()
        loop.abort("a")
        assert not loop.scheduler.has_unfinished
        loop.check_end()


def test_a_fork_copies_one_block_at_most_and_its_end_frees_that() -> None:
    loop = Loop(make_config())
    parent = loop.add_prompt("a", [1] * 9, max_tokens=20)
    for _ in range(3):
        loop.step()
    used = loop.scheduler.stats().blocks_used
    child = loop.fork(parent, 5)
    assert loop.scheduler.stats().blocks_used == used
    plan = loop.step()
    assert len(plan.copies) == 1
    assert child.tables[0][:-1] == parent.tables[0][:-1]
    assert loop.scheduler.stats().blocks_used == used + 1
    loop.end(child)
    assert loop.scheduler.stats().blocks_used == used
    loop.run()


def test_the_last_holder_writes_without_a_copy() -> None:
    loop = Loop(make_config())
    parent = loop.add_prompt("a", [1] * 9, max_tokens=20)
    for _ in range(3):
        loop.step()
    loop.fork(parent, 5)
    loop.end(parent)
    loop.run()
    assert copies_of(loop) == 0


def test_a_block_in_the_cache_is_not_written_by_its_last_holder() -> None:
    # The parent fills and registers the block that the child shares, and is then dropped.
    loop = Loop(make_config())
    parent = loop.add_prompt("a", [1] * 9, max_tokens=20)
    loop.schedule()
    while len(parent.output_token_ids) < 3:
        loop.schedule()
        loop.update()
    loop.schedule()  # the twelfth token's KV is in flight
    child = loop.fork(parent, 5)
    loop.end(parent)
    block = child.tables[0][2]
    found = not loop.scheduler.tables.pool.is_exclusive(block)
    plan = loop.schedule()
    assert plan is not None
    assert bool(plan.copies) is found
    loop.run(depth=3)


def test_forks_without_a_free_slot_wait() -> None:
    loop = Loop(make_config(max_num_seqs=1))
    parent = loop.add_prompt("a", [1] * 9, max_tokens=12)
    loop.step()
    loop.step()
    child = loop.fork(parent, 5)
    loop.step()
    assert child.slot == -1
    loop.run()


def test_beam_search_with_fork_and_drop_each_step() -> None:
    loop = Loop(make_config(max_num_seqs=4))
    beams = [loop.add_prompt("a", [1, 2, 3], max_tokens=12)]
    loop.step()
    for token in range(7):
        best, *rest = beams
        beams = [best, loop.fork(best, token)]
        for beam in rest:
            loop.end(beam)
        loop.step()
    assert max(len(plan.copies) for plan in loop.plans) == 1
    loop.run()


def test_a_fork_of_an_ended_beam_starts_in_the_queue_while_another_lives() -> None:
    loop = Loop(make_config())
    parent = loop.add_prompt("a", [1] * 9, max_tokens=12)
    loop.step()
    loop.step()
    loop.fork(parent, 4)
    loop.end(parent)
    child = loop.fork(parent, 5)
    assert child.status is Status.WAITING
    loop.run()
    assert len(child.output_token_ids) == 12


def test_a_fork_keeps_pace_beside_a_long_prompt() -> None:
    loop = Loop(make_config(max_num_seqs=3, max_num_batched_tokens=5, max_model_len=128))
    parent = loop.add_prompt("a", [1, 2, 3], max_tokens=12)
    loop.step()
    loop.step()
    loop.add_prompt("long", [1] * 60)  # takes the rest of every step
    loop.step()
    child = loop.fork(parent, 5)
    loop.step()
    assert len(child.output_token_ids) == len(parent.output_token_ids)
    loop.run()


def test_what_can_not_be_forked_is_refused() -> None:
    loop = Loop(make_config())
    sequence = loop.add_prompt("a", [1] * 9)
    with pytest.raises(SchedulerError):
        loop.scheduler.fork(sequence, 1)
    loop.run()
    with pytest.raises(SchedulerError):
        loop.scheduler.fork(sequence, 1)

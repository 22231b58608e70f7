"""Draft tokens: those that are right are accepted, and the others change nothing."""

from __future__ import annotations

import pytest

from scheduler import Sequence
from tests.scheduler.fake_device import VOCABULARY
from tests.scheduler.harness import Loop, make_config


def guess(loop: Loop, sequence: Sequence, right: int, count: int = 3) -> list[int]:
    known = len(sequence.output_token_ids)
    tokens = loop.expected[sequence][known : known + count]
    return [
        token if place < right else (token + 1) % VOCABULARY for place, token in enumerate(tokens)
    ]


def drafting(**changes: object) -> Loop:
    return Loop(make_config(**({"max_draft_tokens": 3} | changes)))


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_accepted_drafts_and_one_more_token_come_at_once(right: int) -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20)
    loop.step()
    assert loop.scheduler.draft(sequence, guess(loop, sequence, right)) == 3
    plan = loop.schedule()
    assert plan is not None
    assert (plan.num_tokens, len(plan.drafts[0].token_ids)) == (4, 3)
    result = loop.update()
    assert result.sequences == [sequence] * (right + 1)
    assert len(sequence.output_token_ids) == 1 + right + 1
    loop.run()


def test_a_row_with_drafts_in_flight_is_not_planned_again() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20)
    other = loop.add_prompt("b", [2] * 6, max_tokens=20)
    loop.step()
    loop.scheduler.draft(sequence, guess(loop, sequence, 1))
    loop.schedule()
    plan = loop.schedule()
    assert plan is not None
    assert plan.decode_slots == (other.slot,)
    loop.run(depth=2)


def test_drafts_for_a_token_that_is_in_flight_are_not_taken() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20)
    assert loop.scheduler.draft(sequence, [1]) == 0  # waits
    loop.step()
    loop.schedule()
    assert loop.scheduler.draft(sequence, [1]) == 0
    loop.run(depth=2)


def test_drafts_are_no_longer_than_the_rest_of_the_output() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=3)
    loop.step()
    assert loop.scheduler.draft(sequence, guess(loop, sequence, 3)) == 1
    result_plan = loop.step()
    assert result_plan is not None
    assert (sequence.finish_reason, len(sequence.output_token_ids)) == ("length", 3)


def test_a_stop_among_accepted_drafts_ends_there() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20)
    loop.step()
    free = loop.expected[sequence]
    place = next(i for i in range(2, 20) if free[i] not in free[:i])
    while len(sequence.output_token_ids) < place - 1:
        loop.step()
    sequence.request.stop_token_ids = frozenset((free[place],))
    loop.expected[sequence] = free[: place + 1]
    loop.scheduler.draft(sequence, free[place - 1 : place + 2])
    loop.step()
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", free[place])
    loop.check_end()


def test_drafts_preempt_nothing() -> None:
    loop = drafting(num_blocks=5, max_num_seqs=2)
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=6)
    loop.add_prompt("b", [2] * 6, max_tokens=2)
    loop.step()
    loop.scheduler.draft(sequence, guess(loop, sequence, 3))
    plan = loop.step()
    assert plan is not None
    assert len(plan.drafts[0].token_ids) == 1  # one block's rest: the pool has no more
    assert loop.scheduler.stats().preemptions == 0
    loop.run()


def test_a_row_with_drafts_can_be_preempted() -> None:
    loop = drafting(num_blocks=9, max_num_seqs=2)
    first = loop.add_prompt("a", [1] * 9, max_tokens=14)
    victim = loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.step()
    while not victim.num_preemptions:
        loop.scheduler.draft(victim, guess(loop, victim, 0))
        loop.step()
    assert first.num_preemptions == 0
    loop.run()


def test_a_step_that_computes_a_prompt_verifies_nothing() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=20)
    loop.step()
    loop.add_prompt("b", [2] * 6, max_tokens=2)
    assert not loop.scheduler.can_draft
    loop.scheduler.draft(sequence, guess(loop, sequence, 3))
    plan = loop.step()
    assert plan is not None
    assert (plan.drafts, plan.num_tokens) == ((), 7)
    assert len(sequence.output_token_ids) == 2
    loop.run()


def test_a_step_has_no_more_draft_tokens_than_its_limit() -> None:
    loop = drafting(max_draft_step_tokens=6)
    sequences = [loop.add_prompt(name, [ord(name)] * 6, max_tokens=20) for name in "abc"]
    loop.step()
    for sequence in sequences[:2]:
        assert loop.scheduler.draft(sequence, guess(loop, sequence, 3)) == 3
    plan = loop.step()
    assert plan is not None
    assert plan.num_tokens == 6
    assert [len(draft.token_ids) for draft in plan.drafts] == [3]
    loop.run()


def test_blocks_of_guesses_that_are_not_taken_are_not_cached() -> None:
    loop = drafting()
    sequence = loop.add_prompt("a", [1] * 6, max_tokens=4)
    loop.step()
    loop.scheduler.draft(sequence, guess(loop, sequence, 0))
    loop.step()
    known = list(sequence.output_token_ids)
    loop.abort("a")
    wrong = [1] * 6 + [known[0], (known[1] + 1) % VOCABULARY]
    other = loop.add_prompt("b", [*wrong, 3, 3], max_tokens=2)
    loop.run()
    assert other.num_cached_tokens == 4  # the prompt's first block


def test_a_request_that_waits_for_blocks_does_not_keep_others_from_drafting() -> None:
    loop = drafting(num_blocks=9, max_num_seqs=3)
    sequence = loop.add_prompt("a", [1] * 14, max_tokens=14)
    loop.step()
    loop.add_prompt("b", [2] * 20, max_tokens=2)  # five blocks, where four are free
    assert not loop.scheduler.can_draft
    loop.step()
    assert loop.scheduler.can_draft
    loop.scheduler.draft(sequence, guess(loop, sequence, 3))
    plan = loop.step()
    assert plan is not None
    assert len(plan.drafts[0].token_ids) == 3
    loop.run()

"""Prefix cache: which blocks a request finds, and which it must not."""

from __future__ import annotations

from scheduler import BlockRemoved, BlockStored, CacheCleared, Request
from scheduler.blocks.hashing import block_digests, root_digest
from scheduler.blocks.tables import REGISTER_EVERY
from tests.scheduler.harness import Loop, make_config, make_request

PROMPT = [1, 2, 3, 4, 5, 6, 0, 1, 2, 3]  # two full blocks and a half


def second_hits(first: Request, second: Request, loop: Loop | None = None) -> int:
    loop = loop or Loop(make_config())
    loop.add(first)
    loop.run()
    sequence = loop.add(second)
    loop.run()
    return sequence.num_cached_tokens


def test_full_blocks_of_an_equal_start_are_found() -> None:
    other_tail = [*PROMPT[:8], 6, 6, 6]
    assert second_hits(make_request("a", PROMPT), make_request("b", other_tail)) == 8


def test_lookup_stops_at_the_first_miss() -> None:
    # The second block differs, so the third, though its own tokens are equal, isn't the same.
    first, second = [1] * 4 + [2] * 4 + [3] * 5, [1] * 4 + [5] * 4 + [3] * 5
    assert second_hits(make_request("a", first), make_request("b", second)) == 4


def test_a_full_hit_leaves_a_token_to_compute() -> None:
    prompt = PROMPT[:8]
    assert second_hits(make_request("a", prompt), make_request("b", prompt)) == 4


def test_generated_blocks_are_found_too() -> None:
    loop = Loop(make_config())
    first = loop.add_prompt("a", PROMPT, max_tokens=12)
    loop.run()
    turn = PROMPT + first.output_token_ids + [5, 5, 5]
    second = loop.add_prompt("b", turn)
    loop.run()
    # The last sampled token was never computed: 21 of 22 tokens, so five blocks.
    assert second.num_cached_tokens == 20


def test_salts_and_adapters_share_nothing_and_are_tagged() -> None:
    def request(name: str, **changes: object) -> Request:
        return make_request(name, PROMPT, **changes)

    plain = request("a")
    others = [
        request("b", cache_salt="x"),
        request("b", adapter=b"x"),
        request("b", adapter=b"y"),
    ]
    for other in others:
        assert second_hits(plain, other) == 0
        again = make_request("c", PROMPT, cache_salt=other.cache_salt, adapter=other.adapter)
        assert second_hits(other, again) == 8
    roots = [root_digest(each) for each in [plain, *others]]
    assert len(set(roots)) == 4
    forged = root_digest(request("d", cache_salt="x7:adapter:1:x"))
    assert forged != root_digest(request("d", cache_salt="x", adapter=b"x"))


def test_hashes_are_cryptographic_and_of_at_least_128_bits() -> None:
    request = make_request("a", PROMPT)
    digests = block_digests(root_digest(request), PROMPT, 4)
    assert len(digests) == 2
    assert all(len(digest) * 8 >= 128 for digest in digests)


def test_a_request_for_prompt_logprobs_reads_no_cache_but_fills_it() -> None:
    first = make_request("a", PROMPT, read_prefix_cache=False)
    loop = Loop(make_config())
    assert second_hits(first, make_request("b", PROMPT, read_prefix_cache=False), loop) == 0
    assert second_hits(make_request("c", PROMPT), make_request("d", PROMPT), loop) == 8
    assert loop.scheduler.stats().prefix_queries == 20


def test_the_same_content_in_the_same_step_is_shared() -> None:
    loop = Loop(make_config())
    first, second = loop.add_prompt("a", PROMPT), loop.add_prompt("b", PROMPT, payload=1)
    plan = loop.schedule()
    assert plan is not None
    assert [len(chunk.token_ids) for chunk in plan.chunks] == [10, 2]
    assert first.tables[0][:2] == second.tables[0][:2]
    loop.update()
    loop.run()  # the device compares the KV that it reads


def test_a_chunk_adds_only_its_own_blocks_to_the_cache() -> None:
    loop = Loop(make_config(max_num_batched_tokens=4, max_num_seqs=2))
    loop.add_prompt("a", PROMPT)
    loop.schedule()
    second = loop.add_prompt("b", PROMPT)
    assert len(loop.scheduler.tables.lookup(second)[0]) == 1
    loop.run()


def test_hits_are_held_before_new_blocks_are_taken() -> None:
    # 8 usable blocks, of which 5 are cached and free, in eviction order before the plain ones run
    # out: the second request needs its 5 hits and 3 more.
    loop = Loop(make_config(num_blocks=9))
    prompt = [n % 7 for n in range(20)]
    loop.add_prompt("a", [*prompt, 1], max_tokens=1)
    loop.run()
    assert loop.scheduler.stats().blocks_free == 8
    second = loop.add_prompt("b", prompt + [6] * 11, max_tokens=1)
    loop.run()
    assert second.num_cached_tokens == 20


def test_hits_that_no_sequence_holds_use_up_free_blocks_too() -> None:
    loop = Loop(make_config(num_blocks=9))
    prompt = [n % 7 for n in range(20)]
    loop.add_prompt("a", [*prompt, 1], max_tokens=1)
    loop.run()
    loop.add_prompt("long", [6] * 13, max_tokens=4)  # four of the eight blocks
    loop.step()
    waits = loop.add_prompt("b", [*prompt, 2], max_tokens=1)  # would need six, five of them hits
    loop.step()
    assert waits.slot == -1
    loop.run()


def test_what_was_found_before_a_failed_admission_is_looked_up_again() -> None:
    loop = Loop(make_config(num_blocks=9, max_num_seqs=3))
    prompt = [n % 7 for n in range(16)]
    loop.add_prompt("a", [*prompt, 1], max_tokens=1)
    loop.run()
    loop.add_prompt("big", [6] * 13, max_tokens=14)  # takes the plain blocks, then cached ones
    loop.step()
    waits = loop.add_prompt("b", [*prompt, 2, 3, 4], max_tokens=1)
    assert len(loop.scheduler.tables.lookup(waits)[0]) == 4
    loop.run()
    assert waits.num_cached_tokens < 16


def test_the_tail_of_a_sequence_is_evicted_first() -> None:
    loop = Loop(make_config(num_blocks=9))
    prompt = [n % 7 for n in range(28)]
    loop.add_prompt("a", prompt, max_tokens=1)
    loop.run()
    loop.add_prompt("b", [5] * 12, max_tokens=1)
    loop.run()
    again = loop.add_prompt("c", prompt, max_tokens=1)
    loop.run()
    # b needed three of the eight: the plain one and the last two of a's seven.
    assert again.num_cached_tokens == 20


def test_reset_returns_whether_the_cache_was_cleared() -> None:
    loop = Loop(make_config())
    loop.add_prompt("a", PROMPT)
    loop.step()
    assert loop.scheduler.reset_prefix_cache() is False
    loop.run()
    assert loop.scheduler.reset_prefix_cache() is True
    again = loop.add_prompt("b", PROMPT)
    loop.run()
    assert again.num_cached_tokens == 0


def test_rereads_of_a_preempted_request_are_not_hits() -> None:
    loop = Loop(make_config(num_blocks=9, max_num_seqs=2))
    loop.add_prompt("a", [1] * 9, max_tokens=14)
    loop.add_prompt("b", [2] * 9, max_tokens=14)
    loop.run()
    stats = loop.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.prefix_hits == 0
    assert stats.prefix_queries == 18


def test_events_give_the_content_of_the_cache() -> None:
    loop = Loop(make_config(num_blocks=9, enable_events=True))
    for number in range(6):
        loop.add_prompt(str(number), [number] * 9, max_tokens=6)
    loop.run()
    findable: dict[bytes, tuple[int, ...]] = {}
    for event in loop.scheduler.take_events():
        if isinstance(event, BlockStored):
            assert event.digest not in findable
            assert event.parent is None or len(event.token_ids) == 4
            findable[event.digest] = event.token_ids
        elif isinstance(event, BlockRemoved):
            del findable[event.digest]
    pool = loop.scheduler.tables.pool
    assert findable
    assert all(pool.find(0, digest) is not None for digest in findable)
    assert loop.scheduler.reset_prefix_cache()
    assert loop.scheduler.take_events() == [CacheCleared()]
    assert loop.scheduler.take_events() == []


def test_what_a_running_request_generates_is_found_with_a_bounded_lag() -> None:
    loop = Loop(make_config(num_blocks=60, max_model_len=200))
    first = loop.add_prompt("a", PROMPT, max_tokens=100)
    for _ in range(60):
        loop.step()
    second = loop.add_prompt("b", PROMPT + first.output_token_ids, max_tokens=1)
    loop.step()
    assert second.num_cached_tokens >= 8 + 60 - (REGISTER_EVERY + 2) * 4
    loop.run()

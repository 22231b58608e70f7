"""Requests whose next token may not be planned before the last is known (beams)."""

from __future__ import annotations

from scheduler import Request, Scheduler, SchedulerConfig, StepPlan

CONFIG = SchedulerConfig(
    num_blocks=40, block_size=8, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64
)


def request(name: str, await_tokens: bool, max_tokens: int = 6, n: int = 1) -> Request:
    prompt = list(range(1, 12))
    return Request(name, prompt, max_tokens, n=n, await_tokens=await_tokens)


def run_overlapped(scheduler: Scheduler) -> tuple[dict[str, list[int]], list[StepPlan]]:
    """Plans each step before the results of the one before it are known, as the core does."""
    tokens: dict[str, list[int]] = {}
    plans: list[StepPlan] = []
    in_flight: StepPlan | None = None
    while in_flight is not None or scheduler.has_unfinished:
        plan = scheduler.schedule()
        if in_flight is not None:
            rows = len(in_flight.decode_slots) + len(in_flight.chunks)
            result = scheduler.update(in_flight, [in_flight.step] * rows)
            for sequence, token in zip(result.sequences, result.token_ids, strict=True):
                name = f"{sequence.request.request_id}{sequence.index}"
                tokens.setdefault(name, []).append(token)
        if plan is not None:
            plans.append(plan)
        in_flight = plan
    return tokens, plans


def test_no_row_is_planned_while_its_token_is_in_flight() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("g", True))
    scheduler.add_request(request("p", False, max_tokens=12))
    tokens, _ = run_overlapped(scheduler)
    assert tokens["p0"] == list(range(12))  # one a step
    assert len(tokens["g0"]) == 6
    assert all(b - a >= 2 for a, b in zip(tokens["g0"], tokens["g0"][1:], strict=False))
    assert scheduler.stats().blocks_used == 0


def test_it_says_when_results_must_come_before_the_next_plan() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("p", False))
    scheduler.schedule()
    assert not scheduler.awaits_tokens
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("g", True))
    plan = scheduler.schedule()
    assert plan is not None
    assert scheduler.awaits_tokens
    scheduler.update(plan, [1])
    assert not scheduler.awaits_tokens


def test_samples_share_the_prompt_and_each_gets_all_its_tokens() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("g", True, n=3))
    tokens, plans = run_overlapped(scheduler)
    assert sorted(map(len, tokens.values())) == [6, 6, 6]
    assert sum(len(chunk.token_ids) for plan in plans for chunk in plan.chunks) == 11 + 1 + 1
    assert scheduler.stats().blocks_used == 0


def test_one_token_alone_ends_at_once() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("g", True, max_tokens=1))
    tokens, plans = run_overlapped(scheduler)
    assert tokens == {"g0": [0]}
    assert len(plans) == 1


def test_with_too_few_blocks_they_are_preempted_and_still_end() -> None:
    config = SchedulerConfig(
        num_blocks=9, block_size=8, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=64
    )
    scheduler = Scheduler(config)
    for i in range(4):
        scheduler.add_request(request(f"{i}-", True, max_tokens=20))
    tokens, _ = run_overlapped(scheduler)
    assert sorted(map(len, tokens.values())) == [20] * 4
    assert scheduler.stats().preemptions > 0
    assert scheduler.stats().blocks_used == 0


def test_an_abort_in_flight_frees_everything() -> None:
    scheduler = Scheduler(CONFIG)
    scheduler.add_request(request("g", True))
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.abort("g")
    assert scheduler.update(plan, [1]).sequences == []
    assert scheduler.stats().blocks_used == 0
    assert scheduler.schedule() is None

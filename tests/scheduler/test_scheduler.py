"""The scheduler drives a fake device, and each request sees the tokens it would see alone."""

from __future__ import annotations

from scheduler import Request, Scheduler, SchedulerConfig
from tests.scheduler.fake_device import FakeDevice, generate_alone


def test_mixed_batch_gives_the_tokens_of_each_request_alone() -> None:
    config = SchedulerConfig(
        num_blocks=12, block_size=4, max_num_seqs=3, max_num_batched_tokens=8, max_model_len=40
    )
    scheduler, device = Scheduler(config), FakeDevice(config)
    requests = [
        Request(str(i), [i % 7] * 3 + list(range(i % 7)), max_tokens=12, payload=i)
        for i in range(9)
    ]
    sequences = [scheduler.add_request(request) for request in requests]
    while scheduler.has_unfinished:
        plan = scheduler.schedule()
        assert plan is not None
        sampled, _ = device.run(plan)
        scheduler.update(plan, sampled)
    for request, sequence in zip(requests, sequences, strict=True):
        assert sequence.output_token_ids == generate_alone(request, 0, config.max_model_len)
    assert scheduler.stats().blocks_used == 0

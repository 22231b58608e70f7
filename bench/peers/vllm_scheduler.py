"""vLLM's V1 scheduler under the loads of bench/engine/scheduler_load.py; runs where vLLM is.

Reads one load, as JSON, from each line of stdin, and answers it with a line of JSON: its times.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.engine.scheduler_load import TraceConfig, run

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1 << 17,
    "vocab_size": 32_000,
}


class Peer:
    """vLLM's scheduler, built from a config file without weights, with a fake model."""

    def __init__(self, config: TraceConfig, folder: str) -> None:
        import torch
        from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
        from vllm.sampling_params import SamplingParams
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        max_model_len = 1 << 17
        settings = VllmConfig(
            model_config=ModelConfig(model=folder, dtype="float32", skip_tokenizer_init=True),
            cache_config=CacheConfig(block_size=config.block_size, enable_prefix_caching=True),
            scheduler_config=SchedulerConfig(
                max_num_seqs=config.num_running,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=max_model_len,
                enable_chunked_prefill=True,
                is_encoder_decoder=False,
                async_scheduling=False,
            ),
        )
        settings.cache_config.num_gpu_blocks = config.pool
        spec = FullAttentionSpec(
            block_size=config.block_size, num_kv_heads=4, head_size=16, dtype=torch.float32
        )
        self._scheduler = Scheduler(
            settings,
            KVCacheConfig(config.pool, [], [KVCacheGroupSpec(["layer"], spec)]),
            StructuredOutputManager(settings),
            block_size=config.block_size,
            log_stats=False,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(config.block_size, sha256)
        self._request, self._params, self._output = Request, SamplingParams, ModelRunnerOutput

    def add(self, number: int, prompt: list[int], output: int) -> None:
        params = self._params(max_tokens=output, ignore_eos=True)
        request = self._request(str(number), prompt, params, None, block_hasher=self._hasher)
        self._scheduler.add_request(request)

    def schedule(self) -> Any:
        return self._scheduler.schedule()

    def prepare(self, plan: Any) -> Any:
        ids = list(plan.num_scheduled_tokens)
        requests = self._scheduler.requests
        sampled = [
            [7] if requests[i].num_computed_tokens >= requests[i].num_tokens else [] for i in ids
        ]
        return plan, self._output(ids, {i: row for row, i in enumerate(ids)}, sampled)

    def update(self, results: Any) -> int:
        outputs = self._scheduler.update_from_output(*results)
        return sum(
            output.finish_reason is not None for each in outputs.values() for output in each.outputs
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        for line in sys.stdin:
            config = TraceConfig.from_json(line)
            peer = Peer(config, folder)
            gc.collect()
            times = run(config, peer.add, peer.schedule, peer.update, peer.prepare)
            print(json.dumps(times.summary()), flush=True)


if __name__ == "__main__":
    main()

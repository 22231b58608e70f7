"""The vLLM CPU build's engine without its server, for bench/engine/throughput.py; runs in the
environment of vLLM."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in this process, as ours is
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

from vllm import LLM, SamplingParams

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.rates import Generate, Job, OnToken, serve

BLOCK_SIZE = 32
SETTINGS = (
    f"CPU build; eager (enforce_eager, no torch.compile); blocks of {BLOCK_SIZE} tokens; threads "
    f"bound to cores {os.environ['VLLM_CPU_OMP_THREADS_BIND']}; no prefix cache"
)


def make(job: Job) -> Generate:
    llm = LLM(
        job.model,
        dtype=job.dtype,
        block_size=BLOCK_SIZE,
        enforce_eager=True,
        max_model_len=job.max_model_len,
        max_num_seqs=job.max_seqs,
        enable_prefix_caching=False,
    )
    engine = llm.llm_engine

    def generate(prompts: list[list[int]], answers: list[int], on_token: OnToken) -> None:
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
            engine.add_request(str(row), {"prompt_token_ids": prompt}, params)
        had = [0] * len(prompts)
        while engine.has_unfinished_requests():
            for output in engine.step():
                row = int(output.request_id)
                for _ in range(len(output.outputs[0].token_ids) - had[row]):
                    on_token(row)
                had[row] = len(output.outputs[0].token_ids)

    return generate


if __name__ == "__main__":
    serve(make, SETTINGS)

"""transformers' generate() in static batches, for bench/engine/throughput.py; runs in the
environment of transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.rates import Generate, Job, OnToken, serve


class _Rows(BaseStreamer):
    """Reports each step's tokens of the rows that are not complete."""

    def __init__(self, first: int, answers: list[int], on_token: OnToken) -> None:
        self._first, self._answers, self._on_token = first, answers, on_token
        self._step = 0

    def put(self, value: torch.Tensor) -> None:
        for row, answer in enumerate(self._answers):
            if 0 < self._step <= answer:  # the first call has the prompts
                self._on_token(self._first + row)
        self._step += 1

    def end(self) -> None:
        pass


def make(job: Job) -> Generate:
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=getattr(torch, job.dtype))
    model.eval()

    def batch(prompts: list[list[int]], answers: list[int], streamer: _Rows) -> None:
        """Pads prompts on the left, and runs all rows until the longest answer is complete."""
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(answers),
            min_new_tokens=max(answers),
            do_sample=False,
            pad_token_id=0,
            streamer=streamer,
        )

    def generate(prompts: list[list[int]], answers: list[int], on_token: OnToken) -> None:
        with torch.inference_mode():
            for first in range(0, len(prompts), job.max_seqs):
                some = slice(first, first + job.max_seqs)
                streamer = _Rows(first, answers[some], on_token)
                batch(prompts[some], answers[some], streamer)

    return generate


if __name__ == "__main__":
    serve(make, "generate() in static batches, padded on the left, without torch.compile")

"""transformers' generate() in a static batch, for bench/engine.py; runs in its own environment.

PYTHON transformers_generate.py MODEL.gguf DTYPE TOKENS BATCH...
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

PROMPT, TTFT_PROMPT = 128, 1024


def run(model: torch.nn.Module, batch: int, length: int, tokens: int) -> float:
    ids = torch.from_numpy(np.random.default_rng(batch).integers(10, 40_000, (batch, length)))
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return time.perf_counter() - begin


def main() -> None:
    path, dtype, tokens, *batches = sys.argv[1:]
    file = Path(path)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=getattr(torch, dtype)
    ).eval()
    run(model, 1, PROMPT, 4)
    figures = {}
    for batch in map(int, batches):
        few, many = run(model, batch, PROMPT, 8), run(model, batch, PROMPT, int(tokens))
        figures[f"b{batch}_tok_s"] = round(batch * int(tokens) / many, 1)
        figures[f"b{batch}_decode_tok_s"] = round(batch * (int(tokens) - 8) / (many - few), 1)
    figures["ttft_1024_s"] = round(run(model, 1, TTFT_PROMPT, 1), 3)
    print(json.dumps(figures))


main()

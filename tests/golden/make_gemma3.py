"""Makes gemma3_logits.npz with transformers in float32:

    python tests/golden/make_gemma3.py PATH/gemma-3-270m-q4_k_m.gguf

needs torch, transformers 5 and gguf, and none of this project's code. A prompt longer than the
model's window of 512. Arrays: `ids` [T], `argmax` [T], `columns` [C], `positions` [N], `sampled`
[N, C] (logits), `max` [T], and `greedy` [24]: what follows "The capital of France is" (`prompt`).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main() -> None:
    path = Path(sys.argv[1])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    random = np.random.RandomState(0)
    # Ids of common words follow each other at random: no tokenizer is needed.
    ids = [2, *random.randint(500, 20_000, 639).tolist()]
    prompt = [2, 818, 5279, 529, 7001, 563]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].numpy()
        greedy = list(prompt)
        for _ in range(24):
            greedy.append(int(model(torch.tensor([greedy])).logits[0, -1].argmax()))
    columns = np.sort(random.choice(logits.shape[1], 128, replace=False))
    positions = np.arange(7, len(ids), 16)
    np.savez_compressed(
        Path(__file__).with_name("gemma3_logits.npz"),
        ids=np.array(ids, np.int32),
        argmax=logits.argmax(-1).astype(np.int32),
        columns=columns.astype(np.int32),
        positions=positions.astype(np.int32),
        sampled=logits[positions][:, columns],
        max=logits.max(-1),
        prompt=np.array(prompt, np.int32),
        greedy=np.array(greedy[len(prompt) :], np.int32),
    )


if __name__ == "__main__":
    main()

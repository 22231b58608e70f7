"""Makes the SmolLM2 references with transformers in float32:

    python tests/golden/make_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

needs torch, transformers 5 and gguf, and none of this project's code. Writes, beside itself:
smollm2_greedy.json (24 prompts with 64 greedy tokens each, and the gap between the two largest
logits at each step), smollm2_logprobs.json (of six prompts and their first greedy tokens) and
smollm2_logits.npz (a 200-token prompt).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from make_smollm2_tokenizer import CHATS, load_tokenizer

HERE = Path(__file__).parent
NEW_TOKENS = 64
LOGIT_COLUMNS = 256
LOGPROB_TOKENS, LOGPROB_TOP = 8, 5

SENTENCES = [
    "The old lighthouse keeper counted the ships as they passed in the evening fog.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "In 1969, two people walked on the Moon while a third circled above them.",
    "A prime number has exactly two divisors: one and itself.",
    "She packed bread, cheese, 3 apples and a map, then left before sunrise.",
    "The committee's report, published on Tuesday, raised more questions than it answered.",
]
CODE = (
    "def fibonacci(n: int) -> int:\n    a, b = 0, 1\n    for _ in range(n):\n"
    "        a, b = b, a + b\n    return a\n\n\nclass Stack:\n    def __init__(self):\n"
    "        self.items = []\n\n    def push(self, item):\n"
)


def prompts(tokenizer: Any) -> list[list[int]]:
    """24 prompts, of 1 to 300 tokens."""
    chats = [
        tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in CHATS
    ]
    story = " ".join(SENTENCES)
    plain = [
        "The",
        "Hello",
        "Once upon a time",
        "The capital of Japan is",
        "2 + 2 = 4, 3 + 3 = 6, 4 + 4 =",
        "Les trois couleurs du drapeau français sont",
        "東京は日本の",
        "🚀 Launch day! 🎉",
        "Q: What is 17 times 3?\nA:",
        CODE,
        "import numpy as np\n\n# mean of each column\n",
        "<html>\n  <body>\n    <h1>",
        "SELECT name, age FROM users WHERE",
        "- milk\n- eggs\n- ",
        *SENTENCES[:3],
        story,
    ]
    encoded = [tokenizer(text, add_special_tokens=False).input_ids for text in [*plain, *chats]]
    return [*encoded, tokenizer(" ".join([story] * 4)).input_ids[:300]]


def greedy(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """NEW_TOKENS greedy tokens, whatever they are, and the top-2 gap of the logits at each step."""
    tokens, gaps, cache = [], [], None
    step = torch.tensor([ids])
    for _ in range(NEW_TOKENS):
        out = model(input_ids=step, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        top = out.logits[0, -1].topk(2)
        tokens.append(int(top.indices[0]))
        gaps.append(round(float(top.values[0] - top.values[1]), 6))
        step = top.indices[:1][None]
    return tokens, gaps


def logprobs(model: Any, run: dict[str, Any]) -> dict[str, Any]:
    """Of a run's prompt (after its first token) and of LOGPROB_TOKENS tokens after it: each one's
    logprob and rank, and the likeliest ids with theirs."""
    ids = [*run["prompt"], *run["tokens"][:LOGPROB_TOKENS]]
    rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)[:-1]
    chosen = rows[torch.arange(len(rows)), torch.tensor(ids[1:])]
    top = rows.topk(LOGPROB_TOP)
    return {
        "prompt": run["prompt"],
        "tokens": ids[len(run["prompt"]) :],
        "chosen": [round(x, 5) for x in chosen.tolist()],
        "rank": (1 + (rows > chosen[:, None]).sum(-1)).tolist(),
        "top_ids": top.indices.tolist(),
        "top": [[round(x, 5) for x in row] for row in top.values.tolist()],
    }


def write_json(name: str, value: Any) -> None:
    (HERE / name).write_text(json.dumps(value, separators=(",", ":")) + "\n")


def main() -> None:
    gguf = Path(sys.argv[1])
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, float32"
    tokenizer = load_tokenizer(gguf)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).eval()
    runs = []
    with torch.inference_mode():
        for ids in prompts(tokenizer):
            tokens, gaps = greedy(model, ids)
            runs.append({"prompt": ids, "tokens": tokens, "top2_gap": gaps})
        write_json("smollm2_greedy.json", {"made": made_with, "runs": runs})
        known = [logprobs(model, run) for run in runs[2:24:4]]
        write_json("smollm2_logprobs.json", {"made": made_with, "runs": known})

        ids = tokenizer(" ".join([*SENTENCES, CODE] * 2)).input_ids[:200]
        logits = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    columns = np.sort(np.random.default_rng(0).choice(logits.shape[1], LOGIT_COLUMNS, False))
    np.savez_compressed(
        HERE / "smollm2_logits.npz",
        ids=np.array(ids, np.int32),  # [T]
        last=logits[-1],  # [V]
        argmax=logits.argmax(-1).astype(np.int32),  # [T]
        max=logits.max(-1),  # [T]
        norm=np.linalg.norm(logits.astype(np.float64), axis=-1),  # [T], over the vocabulary
        columns=columns.astype(np.int32),  # [LOGIT_COLUMNS]
        sampled=logits[:, columns],  # [T, LOGIT_COLUMNS]
    )


if __name__ == "__main__":
    main()

"""Makes the SmolLM2 references with transformers in float32:

    python tests/golden/make_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

needs torch, transformers 5 and gguf, and none of this project's code. Writes, beside itself:
smollm2_tokenizer.json (texts with their ids, chat renderings), smollm2_greedy.json (24 prompts with
64 greedy tokens each, and the gap between the two largest logits at each step),
smollm2_logprobs.json (of six prompts and their first greedy tokens) and smollm2_logits.npz (a
200-token prompt).
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import pre_tokenizers

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
CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "user", "content": "Write a haiku about rain."}],
    [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ],
    [
        {"role": "user", "content": "Name three fruits."},
        {"role": "assistant", "content": "Apples, bananas, and cherries."},
        {"role": "user", "content": "And three vegetables?"},
    ],
    [{"role": "user", "content": "Übersetze: „Guten Morgen“ 🌅\n\n  <b>danke</b>"}],
]


def load_tokenizer(gguf: Path) -> Any:
    """transformers' reading of the GGUF, with the file's own pre-tokenizer put in.

    transformers takes plain GPT-2 splitting for every gpt2 vocabulary. The file names `smollm`,
    which takes each digit apart first, as SmolLM2's published tokenizer.json does.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return tokenizer


def texts() -> list[str]:
    rng = random.Random(0)
    fixed = [
        "",
        " ",
        "  ",
        "\n",
        "\n\n\n",
        "\t\t x",
        " leading and trailing ",
        "a  b   c    d     e",
        "line\r\nline\r\n",
        "it's we've I'LL they'd you're",
        "1234567890 3.14159 1,000,000 0x1F ½ ² ٣ Ⅷ",
        "v1  2   3    4",
        "naïve café Größe Straße",
        "e\u0301 vs \u00e9",
        "東京都に住んでいます。",
        "你好,世界!",
        "Привет, мир! Как дела?",
        "مرحبا بالعالم",
        "שלום עולם",
        "नमस्ते दुनिया",
        "สวัสดีชาวโลก",
        "안녕하세요 세계",
        "🚀🚀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷",
        "\u200b\u200d\ufeff\u00a0\u2028\u3000",
        "\x00\x01\x1b[0m\x7f",
        "\ufffd \U0010ffff \ue000",
        "<|im_start|>user\nHi<|im_end|>\n",
        "<|endoftext|><|endoftext|>",
        "a<|im_end|>b<repo_name>c<file_sep> <|im_end",
        "<|im_end|> x  <|im_start|>",
        "https://example.org/a?b=c&d=%20#e",
        '{"a": [1, 2.5e-3, null], "b": {"c": true}}',
        "for (int i = 0; i < n; ++i) { x[i] <<= 2; } // done",
        "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
        "$\\int_0^1 x^2\\,dx = \\frac{1}{3}$",
        "!!!???...---___***///\\\\\\",
        "ALLCAPS CamelCase snake_case kebab-case",
        "supercalifragilisticexpialidocious" * 3,
        "a" * 200,
        " " * 100,
        "=" * 80,
        CODE,
        *SENTENCES,
    ]
    ranges = [(0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x52F), (0x4E00, 0x4FFF), (0x1F300, 0x1F6FF)]
    ranges += [(0x09, 0x0E), (0x30, 0x3A), (0x2000, 0x206F), (0x0900, 0x097F), (0xAC00, 0xACFF)]
    words = " ".join(SENTENCES).split()
    made = []
    while len(fixed) + len(made) < 300:
        pieces = []
        for _ in range(rng.randint(1, 8)):
            low, high = rng.choice(ranges)
            chosen = [chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 4))]
            pieces += [rng.choice(words), " " * rng.randint(0, 3), *chosen]
        made.append("".join(pieces))
    return fixed + made


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
    strings = [
        {
            "text": text,
            "ids": (ids := tokenizer(text).input_ids),
            "decoded": tokenizer.decode(ids, skip_special_tokens=True),
        }
        for text in texts()
    ]
    chats = [
        {
            "messages": chat,
            "add_generation_prompt": generate,
            "text": tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generate
            ),
        }
        for chat, generate in zip(CHATS, (True, True, True, True, False), strict=True)
    ]
    write_json("smollm2_tokenizer.json", {"made": made_with, "strings": strings, "chats": chats})

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

"""2,000 texts for tokenizers, the same everywhere; the scripts here and the tests use them."""

from __future__ import annotations

import random

FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\t x",
    " leading and trailing ",
    "a  b   c    d     e" + " " * 40 + "f",
    "line\r\nline\r\n",
    "it's we've I'LL they'd you're",
    "1234567890 3.14159 1,000,000 0x1F ½ ² ٣ Ⅷ",
    "naïve café Größe Straße e\u0301 \u00e9",
    "東京都に住んでいます。你好,世界!",
    "Привет, мир! Как дела? مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก 안녕하세요",
    "🚀🚀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷",
    "\u200b\u200d\ufeff\u00a0\u2028\u3000",
    "\x00\x01\x1b[0m\x7f",
    "\ufffd \U0010ffff \ue000 \u2581 \u2581\u2581",
    "<bos>hi<eos> <pad><unk> <start_of_turn>user\nHi<end_of_turn>\n",
    "<0x41> <0x0A> <s> </s> [multimodal]",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|><|endoftext|>",
    "a<|im_end|>b<repo_name>c<file_sep> <|im_end",
    "<|im_end|> x  <|im_start|> <end_of_turn>y<eos>",
    "https://example.org/a?b=c&d=%20#e",
    '{"a": [1, 2.5e-3, null], "b": {"c": true}}',
    "for (int i = 0; i < n; ++i) { x[i] <<= 2; } // done",
    "def f(n):\n    if n:\n        return [\n\t\tn\n\t]\n\n\n\nclass A:\n    x = 1\n",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    "<table><tr><td>1</td></tr></table>",
    "!!!???...---___***///\\\\\\",
    "supercalifragilisticexpialidocious" * 3,
    "a" * 200,
    " " * 100,
    "=" * 80,
]
PROSE = (
    "the old lighthouse keeper counted ships as they passed in evening fog Photosynthesis turns "
    "light water into sugar 1969 two people walked on Moon committee's report, (published) def "
    "return self.items[0] == None; import numpy as np camelCase snake_case ALLCAPS Übergröße"
)
WORDS = PROSE.split()
MARKS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "<eos>",
    "<|",
    "</",
    "<0x0A>",
]
RANGES = [(0x20, 0x7F), (0xA0, 0x24F), (0x370, 0x52F), (0x4E00, 0x4FFF), (0x1F300, 0x1F6FF)]
RANGES += [(0x09, 0x0E), (0x30, 0x3A), (0x2000, 0x206F), (0x0900, 0x097F), (0xAC00, 0xACFF)]
RANGES += [(0x10000, 0x10FFF), (0x20000, 0x20FFF)]


def texts() -> list[str]:
    """Prose, code, scripts, emoji, runs of spaces, control characters, marks of special tokens."""
    rng = random.Random(0)
    made = []
    while len(FIXED) + len(made) < 2000:
        pieces = []
        for _ in range(rng.randint(1, 10)):
            low, high = rng.choice(RANGES)
            chosen = [chr(rng.randrange(low, high)) for _ in range(rng.randint(0, 4))]
            pieces += [rng.choice(WORDS), " " * rng.choice((0, 1, 1, 1, 2, 3, 7)), *chosen]
            pieces.append("\n" * rng.choice((0, 0, 0, 1, 2)))
            if rng.random() < 0.03:
                pieces.append(rng.choice(MARKS))
        made.append("".join(pieces))
    return FIXED + made


def noise(num_ids: int) -> list[list[int]]:
    """500 sequences of ids at random, half of them low ones, bytes and special tokens among them:
    most make no text, many no UTF-8."""
    rng = random.Random(1)
    return [
        [rng.randrange(rng.choice((512, num_ids))) for _ in range(rng.randint(1, 12))]
        for _ in range(500)
    ]

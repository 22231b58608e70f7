"""What quantisation costs a model: perplexity of a text, and how often the likeliest next token
stays the same:

    python -m bench.engine.perplexity [--model FOLDER] [--tokens 20000] [--text FILE ...]

The model is one of floats, by default the demo model widened. The text is this repository's docs by
default; it is read in pieces of 512 tokens. The first line is without quantisation; the last is one
flat JSON object.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from bench.common import demo_weights
from bench.common.figures import print_figures
from jaxserve import LLM, SamplingParams
from jaxserve.config import MIB

PIECE = 512
VARIANTS: dict[str, dict[str, Any]] = {
    "floats": {},
    "fp8": {"quantization": "fp8"},
    "int8": {"quantization": "int8"},
    "int4": {"quantization": "int4"},
    "fp8_e4m3 KV": {"kv_cache_dtype": "fp8_e4m3"},
}


def measure(
    model: str, text: str, tokens: int, settings: dict[str, Any]
) -> tuple[float, list[int]]:
    """Perplexity of the text's first tokens, and the likeliest token at each place."""
    llm = LLM(
        model,
        progress=False,
        max_model_len=PIECE + 1,
        max_num_seqs=4,
        max_num_batched_tokens=PIECE,
        kv_cache_memory=256 * MIB,
        enable_prefix_caching=False,
        **settings,
    )
    ids = llm.tokenizer.encode(text)[:tokens]
    pieces = [ids[i : i + PIECE] for i in range(0, len(ids), PIECE)]
    outputs = llm.generate(pieces, SamplingParams(max_tokens=1, prompt_logprobs=1))
    places = [one for output in outputs for one in output.prompt_logprobs or () if one is not None]
    llm.core.close()
    mean = sum(place.logprob for place in places) / len(places)
    return math.exp(-mean), [place.top[0][0] for place in places]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="a folder of float weights")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--text", type=Path, nargs="+", default=sorted(Path("docs").glob("*.md")))
    parser.add_argument("--only", nargs="+", default=[], choices=list(VARIANTS)[1:])
    args = parser.parse_args()
    model = args.model or str(demo_weights.write(demo_weights.default_folder()))
    text = "\n".join(file.read_text() for file in args.text)
    figures: dict[str, Any] = {}
    base, first = 0.0, []
    wanted = ("floats", *args.only) if args.only else tuple(VARIANTS)
    for name in wanted:
        perplexity, likeliest = measure(model, text, args.tokens, VARIANTS[name])
        if not first:
            base, first = perplexity, likeliest
        same = sum(a == b for a, b in zip(first, likeliest, strict=True)) / len(first)
        print(f"{name:<12} {perplexity:8.4f} {perplexity / base - 1:+8.2%} {same:7.2%}", flush=True)
        key = name.lower().replace(" ", "_")
        figures |= {f"{key}_perplexity": perplexity, f"{key}_agreement": same}
    print_figures({"model": model, "tokens": len(first), **figures})


if __name__ == "__main__":
    main()

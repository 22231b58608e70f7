"""Makes beams.json with transformers in float32:

    python tests/golden/make_beams.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf

needs torch, transformers 5 and gguf, and none of this project's code. Beam searches on the tiny
Llama of tiny_llama.npz, its vocabulary cut to the tokenizer's, with several stop tokens, and one on
SmolLM2: the prompt, generate()'s settings, and all num_beams outputs with their scores, best first.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
TOKENIZER_IDS = 259
STOPS = list(range(7, TOKENIZER_IDS, 36))
NEW_TOKENS = 24


def tiny_llama(arrays: dict[str, np.ndarray]) -> Any:
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**json.loads(str(arrays["config"])))
    )
    prefix = "weight:"
    model.load_state_dict(
        {
            name.removeprefix(prefix): torch.from_numpy(value).float()
            for name, value in arrays.items()
            if name.startswith(prefix)
        }
    )
    model.resize_token_embeddings(TOKENIZER_IDS)
    return model.eval().float()


def search(model: Any, prompt: list[int], stops: list[int], **settings: Any) -> dict[str, Any]:
    out = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        eos_token_id=stops,
        pad_token_id=0,
        do_sample=False,
        num_return_sequences=settings["num_beams"],
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    outputs = []
    for row, beams in zip(out.sequences.tolist(), out.beam_indices.tolist(), strict=True):
        length = sum(beam >= 0 for beam in beams)
        outputs.append(row[len(prompt) : len(prompt) + length])
    return {
        "prompt": prompt,
        "stops": stops,
        **settings,
        "outputs": outputs,
        "scores": [round(score, 5) for score in out.sequences_scores.tolist()],
    }


def main() -> None:
    gguf = Path(sys.argv[1])
    with np.load(HERE / "tiny_llama.npz") as archive:
        arrays = dict(archive)
    tiny = tiny_llama(arrays)
    grid = itertools.product((1, 2), (2, 4), (1.0, 0.3, 2.0), (False, True, "never"))
    with torch.inference_mode():
        runs = [
            search(
                tiny,
                arrays[f"prompt_{i}"].tolist(),
                STOPS,
                num_beams=num_beams,
                length_penalty=penalty,
                early_stopping=early,
                max_new_tokens=NEW_TOKENS,
            )
            for i, num_beams, penalty, early in grid
        ]
        real = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        ).eval()
        greedy = json.loads((HERE / "smollm2_greedy.json").read_text())["runs"]
        demo = search(
            real,
            greedy[3]["prompt"],
            [2],
            num_beams=4,
            length_penalty=1.0,
            early_stopping=False,
            max_new_tokens=NEW_TOKENS,
        )
    made = f"transformers {transformers.__version__}, torch {torch.__version__}, float32"
    text = json.dumps({"made": made, "tiny": runs, "demo": demo}, separators=(",", ":"))
    (HERE / "beams.json").write_text(text + "\n")


if __name__ == "__main__":
    main()

"""Makes tiny_llama.npz with transformers in float32:

    python tests/golden/make_tiny_llama.py

needs torch and transformers 5, and none of this project's code. A random Llama that differs where
mistakes hide: head size apart from hidden / heads, grouped queries, an untied head, norms that
aren't 1, a vocabulary padded beyond its tokenizer (259 ids), which the greedy tokens leave out.
Arrays: `config` (JSON of config.json), `weight:NAME` (float16, exact), and for i in 0, 1, 2
`prompt_i` [T], `logits_i` [T, V] and `greedy_i` [32].
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 272,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
PROMPT_LENGTHS = (1, 17, 50)
NEW_TOKENS = 32
TOKENIZER_IDS = 259


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG, initializer_range=0.15)).eval().float()
    arrays = {"config": np.array(json.dumps(CONFIG))}
    with torch.inference_mode():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.uniform_(0.5, 1.5)
            weight.copy_(weight.half().float())
            arrays[f"weight:{name}"] = weight.half().numpy()
        for i, length in enumerate(PROMPT_LENGTHS):
            ids = torch.randint(0, 256, (length,)).tolist()
            prompt, logits = list(ids), model(torch.tensor([ids])).logits[0]
            for _ in range(NEW_TOKENS):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1, :TOKENIZER_IDS].argmax()))
            arrays[f"prompt_{i}"] = np.array(prompt, np.int32)
            arrays[f"logits_{i}"] = logits.numpy()
            arrays[f"greedy_{i}"] = np.array(ids[length:], np.int32)
    np.savez_compressed(Path(__file__).with_name("tiny_llama.npz"), **arrays)


if __name__ == "__main__":
    main()

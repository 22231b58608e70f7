"""Makes adapters/NAME.npz with peft and transformers in float32, one for each family of
make_families.py:

    python tests/golden/make_adapters.py [NAME ...]

needs torch, transformers 5, peft, safetensors, and none of this project's code. Adapters of random
numbers (tiny_weights.py) on that family's random model. For each case the npz has `config_CASE`
(peft's adapter_config.json), `tensors_CASE` (JSON of name -> shape, as peft saves them) and
`logits_CASE` [T, V] of the prompt `ids` [T]: those of the last KEPT tokens, by the merged weights
(merge_and_unload), or with a tied head by peft's own forward pass, since peft merges into both.
`ids` and the base model are those of families/NAME.npz.

Cases: each module alone with a rank of its own; "all" of them with other ranks and scales in
patterns; "rslora"; "tables", embedding and head; "experts", all experts by peft's
target_parameters; "apart", each expert's matrices under the names that they are published under, as
older versions of peft have them, merged here by the definition.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_families import CONFIGS, weights
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.numpy import save_file
from tiny_weights import make
from transformers import AutoModelForCausalLM

KEPT = 8
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
ATTENTION = LINEAR[:4]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
HERE = Path(__file__).parent


def cases(name: str) -> dict[str, dict[str, Any]]:
    """LoraConfig's arguments of each case."""
    has_experts = name in ("mixtral", "qwen3_moe", "gpt_oss")
    modules = FUSED if name.startswith("phi3") else ATTENTION if has_experts else LINEAR
    found: dict[str, dict[str, Any]] = {
        module: {"target_modules": [module], "r": 1 + 3 * n, "lora_alpha": 5 + n}
        for n, module in enumerate(modules)
    }
    found["all"] = {
        "target_modules": list(modules),
        "r": 8,
        "lora_alpha": 12,
        "rank_pattern": {modules[1]: 3, f"layers.0.self_attn.{modules[0]}": 5},
        # Where both match, the first counts; peft saves them sorted.
        "alpha_pattern": {"model.layers.1.self_attn.o_proj": 20, modules[-1]: 4},
    }
    found["rslora"] = {
        "target_modules": [modules[0], modules[-1]],
        "r": 256 if name == "llama2" else 16,
        "lora_alpha": 8,
        "use_rslora": True,
    }
    if CONFIGS[name].get("tie_word_embeddings"):
        found["tables"] = {"target_modules": ["embed_tokens"], "r": 4, "lora_alpha": 8}
    else:
        tables = ["embed_tokens", "lm_head", modules[0]]
        found["tables"] = {"target_modules": tables, "r": 4, "lora_alpha": 8}
    if has_experts:
        found["experts"] = {
            "target_modules": ["q_proj"],
            "target_parameters": EXPERTS,
            "r": 4,
            "lora_alpha": 6,
        }
        found["gate_up_alone"] = {
            "target_modules": ["q_proj"],
            "target_parameters": EXPERTS[:1],
            "r": 3,
            "lora_alpha": 6,
        }
    return found


def saved(model: Any, folder: Path) -> tuple[str, dict[str, list[int]]]:
    """What peft saves of an adapter: its config, and the tensors' names and shapes."""
    model.save_pretrained(folder)
    with safe_open(folder / "adapter_model.safetensors", "numpy") as file:
        shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
    return (folder / "adapter_config.json").read_text(), shapes


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return model(torch.tensor([ids.tolist()]), use_cache=False).logits[0, -KEPT:].numpy()


def run(name: str) -> None:
    golden = np.load(HERE / "families" / f"{name}.npz")
    ids, given = golden["ids_1"], json.loads(str(golden["config"]))
    base = weights(json.loads(str(golden["tensors"])))
    arrays: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(given))
        save_file(base, folder / "model.safetensors", metadata={"format": "pt"})
        assert np.abs(logits(load(folder), ids) - golden["logits_1"][-KEPT:]).max() < 1e-5
        for case, settings in cases(name).items():
            model = get_peft_model(load(folder), LoraConfig(task_type="CAUSAL_LM", **settings))
            config, shapes = saved(model, folder / case)
            own = {key: make(key, tuple(shape)) for key, shape in shapes.items() if "lora_" in key}
            state = model.state_dict()
            for key, value in own.items():
                stem, _, last = key.rpartition(".")
                full = f"{stem}.default.{last}" if last == "weight" else f"{key}.default"
                assert full in state, full
                state[full].copy_(torch.from_numpy(value))
            unmerged = logits(model, ids)
            tied = case == "tables" and given["tie_word_embeddings"]
            found = unmerged if tied else logits(model.merge_and_unload(), ids)
            assert np.abs(found - unmerged).max() < 1e-4 * np.abs(found).max(), (name, case)
            assert np.abs(found - golden["logits_1"][-KEPT:]).max() > 1e-2, (name, case)
            arrays |= {
                f"config_{case}": np.array(config),
                f"tensors_{case}": np.array(json.dumps(shapes)),
                f"logits_{case}": found,
            }
        if name in ("mixtral", "qwen3_moe"):
            arrays |= apart(base, folder, ids)
    out = HERE / "adapters"
    out.mkdir(exist_ok=True)
    np.savez_compressed(out / f"{name}.npz", **arrays)
    print(name, [key for key in arrays if key.startswith("logits")])


def apart(base: dict[str, np.ndarray], folder: Path, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Each expert's matrices, of rank 2 or 3, but for those of the last expert."""
    merged, shapes = dict(base), {}
    numbers = {key.split(".experts.")[1].split(".")[0] for key in base if ".experts." in key}
    last = str(max(map(int, numbers)))
    for n, key in enumerate(key for key in base if ".experts." in key):
        stem, rank, alpha = key.removesuffix(".weight"), 2 + n % 2, 4
        if stem.split(".experts.")[1].split(".")[0] == last:
            continue
        outputs, inputs = base[key].shape
        names = [f"base_model.model.{stem}.lora_{x}.weight" for x in "AB"]
        shapes |= dict(zip(names, ([rank, inputs], [outputs, rank]), strict=True))
        a, b = (make(x, tuple(shapes[x])) for x in names)
        merged[key] = base[key] + alpha / rank * (b @ a)
    save_file(merged, folder / "model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "task_type": "CAUSAL_LM"}
    return {
        "config_apart": np.array(json.dumps(config)),
        "tensors_apart": np.array(json.dumps(shapes)),
        "logits_apart": logits(load(folder), ids),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or CONFIGS:
        run(name)

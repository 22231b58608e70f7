"""What adapters cost: tokens a second of 32 rows with none, 1 and 8 different ones.

    python -m bench.engine.adapters [--model smollm2-135m] [--rows 32] [--tokens 64]
        [--ranks 16 64] [--rounds 5] [--modules all | q_proj v_proj ...]

For each rank, an engine with 8 slots of it decodes the same rows without adapters, with one on all
rows, and with 8 in turn; beside it, an engine that has no slots at all. Each round runs all of
them, in turn from another one on, after one that isn't counted; figures are medians of the rounds,
and ratios medians of the rounds' own ratios to the engine without slots. Adapters are of random
numbers, on the layers' matrices. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

import checkpoints
from bench.common.figures import print_figures
from bench.peers.compare.processor import Others
from checkpoints import open_checkpoint
from checkpoints.adapters import targets
from jaxserve import LLM, SamplingParams

COUNTS = (0, 1, 8)
SLOTS = 8


def write_adapter(folder: Path, model: Path, rank: int, seed: int, modules: list[str]) -> None:
    """An adapter on these modules, or on all matrices of the layers."""
    random = np.random.default_rng(seed)
    tensors = {}
    for target in targets(open_checkpoint(model).config):
        for names in target.modules:
            for name, outputs in zip(names, target.sizes, strict=True):
                last = name.rpartition(".")[2]
                if target.path[0] != "layers" or (modules != ["all"] and last not in modules):
                    continue
                for kind, shape in (("A", (rank, target.inputs)), ("B", (outputs, rank))):
                    values = random.standard_normal(shape, np.float32) * np.float32(0.01)
                    tensors[f"base_model.model.{name}.lora_{kind}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def rate(llm: LLM, names: list[str | None], tokens: int) -> float:
    """Tokens a second of rows with these adapters, from the first prompt to the last token."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [[5 + i, 7, 11, 13] for i in range(len(names))]
    began = time.monotonic()
    llm.generate(prompts, params, lora=names, use_tqdm=False)
    return len(names) * tokens / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--modules", nargs="+", default=["all"])
    args = parser.parse_args()
    settings = {"progress": False, "max_model_len": 512, "max_num_seqs": args.rows}
    path = checkpoints.pull(args.model)
    base, others = LLM(args.model, **settings), Others(lambda: ())
    figures: dict[str, float | str] = {
        "model": args.model,
        "rows": args.rows,
        "modules": " ".join(args.modules),
    }
    with tempfile.TemporaryDirectory() as temporary:
        for rank in args.ranks:
            folders = [Path(temporary) / f"r{rank}-{i}" for i in range(SLOTS)]
            for i, folder in enumerate(folders):
                write_adapter(folder, path, rank, i, args.modules)
            named = tuple(f"a{i}={folder}" for i, folder in enumerate(folders))
            targets_used = ("q_proj", "o_proj", "gate_proj", "down_proj")
            llm = LLM(
                args.model,
                **settings,
                lora=named,
                max_loras=SLOTS,
                max_lora_rank=rank,
                lora_targets=targets_used,
            )
            figures |= measured(base, llm, args.rows, args.tokens, args.rounds, f"rank_{rank}_")
            figures[f"rank_{rank}_compiles"] = llm.core.compiles
            llm.core.close()
    base.core.close()
    figures["other_programs_share"] = round(others.share(), 2)
    print_figures(figures)


def measured(
    base: LLM, llm: LLM, rows: int, tokens: int, rounds: int, prefix: str
) -> dict[str, float]:
    """The figures of one rank."""
    kinds: dict[str, tuple[LLM, list[str | None]]] = {"base": (base, [None] * rows)}
    for count in COUNTS:
        names = [f"a{i % count}" if count else None for i in range(rows)]
        kinds[f"adapters_{count}"] = (llm, list(names))
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for nth in range(-1, rounds):
        order = list(kinds)
        for kind in order[nth % len(order) :] + order[: nth % len(order)]:
            engine, names = kinds[kind]
            found = rate(engine, names, tokens)
            if nth >= 0:
                rates[kind].append(found)
    figures = {}
    for kind, found in rates.items():
        ratios = [own / plain for own, plain in zip(found, rates["base"], strict=True)]
        figures[f"{prefix}{kind}_tok_s"] = round(statistics.median(found), 1)
        figures[f"{prefix}{kind}_highest_tok_s"] = round(max(found), 1)
        if kind != "base":
            figures[f"{prefix}{kind}_ratio"] = round(statistics.median(ratios), 3)
        print(f"{prefix}{kind}: {', '.join(f'{own:.1f}' for own in found)} tok/s", flush=True)
    return figures


if __name__ == "__main__":
    main()

"""How fast weights load, beside a plain read of the same bytes:

    python -m bench.engine.weight_loading [--gib 1]

Makes a random Llama of that size in bfloat16 in a temporary folder as safetensors, converts it to
Orbax, and times, best of 3 with the files in the page cache: a plain read into one buffer; loading
each format into parameters as they are stored; and the same converted to float32. Rates are GB/s of
stored bytes. convert's time includes starting Python; its peak memory includes the pages of the
file that it maps. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from bench.common.figures import Figures, print_figures
from checkpoints import open_checkpoint
from checkpoints.weight_map import sources
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.models.registry import config_from_hf

HIDDEN, FFN, LAYER_BYTES = 2048, 8192, 2 * (2048 * 2048 * 4 + 3 * 2048 * 8192)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32_000,
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": 16,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


def write_folder(folder: Path, gib: float) -> None:
    hf = CONFIG | {"num_hidden_layers": max(1, round(gib * 2**30 / LAYER_BYTES))}
    (folder / "config.json").write_text(json.dumps(hf))
    random = np.random.default_rng(0)
    tensors = {}
    for source in sources(config_from_hf(hf)).values():
        for name, shape in source.tensors.items():
            values = random.standard_normal(shape, np.float32) * 0.02
            tensors[name] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, folder / "model.safetensors")


def plain_read(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        if file.is_file():
            buffer = bytearray(file.stat().st_size)
            with file.open("rb", buffering=0) as opened:
                total += opened.readinto(buffer) or 0
    return total


def best(run: Callable[[], object], times: int = 3) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def load(folder: Path, dtype: str) -> None:
    checkpoint, kind = open_checkpoint(folder), jnp.dtype(dtype)
    model = outline(checkpoint.config, kind, max_model_len=None)
    jax.block_until_ready(load_parameters(checkpoint, model, kind, progress=False))


def convert(source: Path, target: Path) -> None:
    """Runs `jaxserve convert` in a process of its own, so that its peak memory can be read."""
    command = [sys.executable, "-m", "jaxserve.cli.main", "convert", str(source), str(target)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the weights (default: 1)")
    gib = parser.parse_args().gib
    with tempfile.TemporaryDirectory() as temporary:
        hf, orbax = Path(temporary) / "hf", Path(temporary) / "orbax"
        hf.mkdir()
        write_folder(hf, gib)
        convert_s = best(lambda: convert(hf, orbax), 1)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        stored = open_checkpoint(hf).nbytes
        gb = stored / 1e9
        figures: Figures = {
            "weights_gb": round(gb, 3),
            "convert_s": round(convert_s, 2),
            "convert_gb_s": round(gb / convert_s, 3),
            "convert_peak_gib": round(peak / 2**20, 2),
        }
        print(f"{gb:.2f} GB of bfloat16; on disk: Orbax {plain_read(orbax) / 1e9:.2f} GB")
        print(f"convert          {convert_s:6.2f} s  {gb / convert_s:5.2f} GB/s", end="")
        print(f"  peak host memory {peak / 2**20:.2f} GiB")
        for name, folder in (("safetensors", hf), ("orbax", orbax)):
            seconds = best(lambda folder=folder: plain_read(folder))
            figures[f"{name}_read_gb_s"] = round(gb / seconds, 3)
            print(f"{name:12} read {seconds:5.2f} s  {gb / seconds:5.2f} GB/s")
            for dtype in ("bfloat16", "float32"):
                seconds = best(lambda folder=folder, dtype=dtype: load(folder, dtype))
                figures[f"{name}_load_{dtype}_gb_s"] = round(gb / seconds, 3)
                print(f"{name:12} as {dtype:8} {seconds:5.2f} s  {gb / seconds:5.2f} GB/s")
    print_figures(figures)


if __name__ == "__main__":
    main()

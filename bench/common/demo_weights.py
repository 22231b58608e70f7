"""The demo model as a Hugging Face folder of float32 weights, so that every engine serves the same
weights:

    python -m bench.common.demo_weights [FOLDER]

Other engines read a GGUF file slowly or not at all; llama.cpp alone reads the original 4-bit file.
The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from safetensors.numpy import save_file

import checkpoints
from bench.common.figures import print_figures
from checkpoints.gguf_config import hf_config
from checkpoints.gguf_file import GGUFCheckpoint
from checkpoints.gguf_header import read_header
from jaxserve.config import cache_dir
from jaxserve.text.gguf_vocab import byte_level_backend

DEMO = "smollm2-135m"


def default_folder() -> Path:
    """The folder that benchmarks share."""
    return cache_dir() / "bench" / f"{DEMO}-float32"


def write(folder: Path) -> Path:
    """Writes config, tokenizer and weights (540 MB), unless they are there."""
    if (folder / "config.json").exists():
        return folder
    file = checkpoints.pull(DEMO)
    folder.mkdir(parents=True, exist_ok=True)
    header, checkpoint = read_header(file), GGUFCheckpoint(file)
    weights = {name: checkpoint.read(name) for name in checkpoint.shapes()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    byte_level_backend(header).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    kind = {"model_type": "llama", "dtype": "float32", "hidden_act": "silu"}
    # Written last: its presence says that the folder is complete.
    (folder / "config.json").write_text(json.dumps(hf_config(header) | kind))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=default_folder())
    folder = write(parser.parse_args().folder)
    size = (folder / "model.safetensors").stat().st_size
    print_figures({"folder": str(folder), "weights_mib": round(size / 2**20, 1)})


if __name__ == "__main__":
    main()

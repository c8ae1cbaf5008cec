#!/bin/sh
# Builds the compiled core (and, where oneDNN's headers are, its kernels) into src/mixflow, for
# work in the source tree. Usage: [PYTHON=python] tools/build_core.sh [build_dir] [cmake options]
# The Python needs nanobind, cmake and ninja (pip install nanobind cmake ninja).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
build=${1:-$root/build/core}
[ $# -gt 0 ] && shift
bin=$("$python" -c 'import sys, pathlib; print(pathlib.Path(sys.executable).parent)')
PATH=$bin:$PATH
export PATH
mkdir -p "$(dirname "$build")"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" "$@" >"$build.log" 2>&1 ||
  { cat "$build.log"; exit 1; }
cmake --build "$build" --parallel "${JOBS:-2}"
for built in "$build"/_core*.so "$build"/_onednn*.so; do
  [ -e "$built" ] || continue
  name=$(basename "$built")
  # Renamed into place: a running Python keeps the file that it has mapped.
  cp "$built" "$root/src/mixflow/.$name.new"
  mv "$root/src/mixflow/.$name.new" "$root/src/mixflow/$name"
done

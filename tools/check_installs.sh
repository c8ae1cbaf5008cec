#!/bin/sh
# Proves the ways to install, each in a new environment, from a clean clone of HEAD, used outside the
# source tree:
#   pure     MIXFLOW_PURE=1 pip install, with neither compiler nor cmake in reach: NumPy alone
#   normal   an isolated `pip install .`
#   without  the same environment after oneDNN's wheel was removed: plain native kernels
# Each trains an mlp on the digits and passes the smoke and contract tests.
# Usage: tools/check_installs.sh [pure] [normal] [without]     (none: all)
# PYTHON: interpreter for the environments. WORK: folder to work in (default: a temporary one).
# Needs a network for pip.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=${WORK:-$(mktemp -d)}
[ -n "${WORK:-}" ] || trap 'rm -rf "$work"' EXIT
mkdir -p "$work/outside"
testing="pytest pytest-timeout hypothesis scipy"

say() { printf '\n== %s\n' "$*"; }

# The tests of the clone, away from the clone's sources.
rm -rf "$work/clone"
git clone -q "$root" "$work/clone"
cp -r "$work/clone/tests" "$work/clone/pyproject.toml" "$work/outside/"

environment() {  # name
  rm -rf "${work:?}/$1"
  "$python" -m venv "$work/$1"
}

# Runs in the environment $1 with nothing else in PATH and no variables of the caller's.
inside() {
  name=$1
  shift
  (cd "$work/outside" &&
    env -i HOME="$HOME" PATH="$work/$name/bin" VIRTUAL_ENV="$work/$name" ${variables:-} "$@")
}

pip_install() {  # name, what to install
  name=$1
  shift
  inside "$name" python -m pip install -q --disable-pip-version-check "$@"
}

check() {  # name
  inside "$1" python - <<'CODE'
import importlib.metadata, mixflow
from mixflow import _rt, backends
from mixflow.backends import onednn_loader
assert "outside" not in mixflow.__file__ and "site-packages" in mixflow.__file__, mixflow.__file__
backend = backends.default_backend()
onednn = onednn_loader.load(_rt.core) if _rt.core.name == "native" else None
print("core", _rt.core.name, "backend", backend.name, "oneDNN", onednn)
CODE
  inside "$1" mixflow train --network mlp --data digits --epochs 3 --quiet --out "run-$1"
  inside "$1" python -m pytest -q -p no:cacheprovider -m "not slow and not oracle" \
    tests/smoke tests/contract
}

pure() {
  say "pure: no compiler, NumPy alone"
  environment pure
  variables="MIXFLOW_PURE=1"
  pip_install pure "$work/clone"
  variables=""
  if inside pure python -m pip list 2>/dev/null | grep -i "onednn\|nanobind\|cmake"; then
    echo "expected no compiled requirement, got the above" >&2
    exit 1
  fi
  inside pure mixflow train --network mlp --data digits --epochs 3 --quiet --out run-bare
  pip_install pure $testing
  check pure
}

normal() {
  say "normal: isolated build"
  environment normal
  # The build needs the system's compiler; everything else comes from pip.
  (cd "$work/outside" && env -u PYTHONPATH "$work/normal/bin/python" -m pip install -q \
    --disable-pip-version-check "$work/clone")
  pip_install normal $testing
  check normal
  inside normal mixflow train --network lenet --data digits --epochs 1 --quiet --out run-lenet
}

without() {
  say "without oneDNN's wheel"
  [ -d "$work/normal" ] || { echo "run 'normal' first, with the same WORK" >&2; exit 2; }
  inside normal python -m pip uninstall -q -y onednn-cpu-gomp
  check normal
  inside normal mixflow train --network lenet --data digits --epochs 1 --quiet --out run-lenet
  pip_install normal "onednn-cpu-gomp==2023.2.0"
  say "MIXFLOW_ONEDNN_LIBRARY=none"
  variables="MIXFLOW_ONEDNN_LIBRARY=none"
  check normal
  inside normal mixflow train --network lenet --data digits --epochs 1 --quiet --out run-lenet
  variables=""
}

[ $# -gt 0 ] || set -- pure normal without
for part in "$@"; do
  case $part in
    pure | normal | without) "$part" ;;
    *) echo "expected pure, normal or without, got '$part'" >&2; exit 2 ;;
  esac
done
say "all installs work"

"""The plain C++ tests of storage, engine and boards, built without Python and OpenMP, and run.

MIXFLOW_TEST_COUNT sets the number of tasks (``make prove``: 1000000); the default keeps
``make test`` short. Builds are cached per sanitizer under ``build/native-tests``.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted(
    path.stem
    for pattern in ("engine_*.cpp", "storage_*.cpp", "kvstore_*.cpp")
    for path in (ROOT / "csrc" / "tests").glob(pattern)
)
COUNT = int(os.environ.get("MIXFLOW_TEST_COUNT", "10000"))
SANITIZED_COUNT = max(1500, COUNT // 50)  # sanitizers are 20 to 50 times slower
_built: dict[str, Path] = {}


def _missing_tool() -> str:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "no C++ compiler found (c++, g++ or clang++)"
    if not shutil.which("cmake"):
        return "no cmake found"
    return ""


def _build(sanitizer: str) -> Path:
    """Configures and builds once per session; returns the folder of the programs."""
    if reason := _missing_tool():
        pytest.skip(reason)
    if sanitizer in _built:
        return _built[sanitizer]
    folder = ROOT / "build" / "native-tests" / (sanitizer or "plain")
    configure = [
        "cmake",
        "-S",
        str(ROOT),
        "-B",
        str(folder),
        "-DMIXFLOW_TESTS=ON",
        "-DMIXFLOW_PYTHON=OFF",
        f"-DMIXFLOW_SANITIZE={sanitizer}",
    ]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    for command in (configure, ["cmake", "--build", str(folder), "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    _built[sanitizer] = folder
    return folder


def _run(sanitizer: str, program: str, count: int, timeout: int) -> None:
    command = [str(_build(sanitizer) / program), str(count)]
    if sanitizer == "thread" and shutil.which("setarch"):
        # The thread sanitizer of gcc 12 does not know the address layout of newer kernels.
        command = ["setarch", platform.machine(), "-R", *command]
    # The thread sanitizer does not support threads in a forked child.
    extra = {"MIXFLOW_TEST_NO_FORK": "1"} if sanitizer == "thread" else {}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **extra}
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"


def test_programs_are_found() -> None:
    assert {"engine_random", "engine_behaviour", "storage_pool"} <= set(PROGRAMS)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", PROGRAMS)
def test_native(program: str) -> None:
    _run("", program, COUNT, 600)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_native_sanitized(program: str, sanitizer: str) -> None:
    _run(sanitizer, program, SANITIZED_COUNT, 1500)

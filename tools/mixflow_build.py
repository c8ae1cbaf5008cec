"""PEP 517 back end of this tree: scikit-build-core, or a wheel of plain Python.

With ``MIXFLOW_PURE=1`` nothing is compiled and neither cmake nor nanobind is asked for: the wheel
runs on `mixflow.backends.pure` and NumPy, and does not ask for oneDNN either. Otherwise the hook
returns what the compiled build needs, so that the static list in pyproject.toml stays free of it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import sys
import zipfile
from pathlib import Path
from typing import Any

from scikit_build_core import build as _scikit

Settings = dict[str, Any] | None

_PURE_SETTINGS = {"wheel.cmake": "false", "wheel.py-api": "py3", "wheel.exclude": "**/*.so"}
_NATIVE_REQUIRES = ["nanobind>=2.4"]
_ONEDNN_REQUIRES = ["onednn-devel-cpu-gomp==2023.2.0", "onednn-cpu-gomp==2023.2.0"]


def _pure() -> bool:
    return os.environ.get("MIXFLOW_PURE") == "1"


def _settings(given: Settings) -> Settings:
    return {**(given or {}), **_PURE_SETTINGS} if _pure() else given


def _native_requires() -> list[str]:
    if _pure():
        return []
    x86_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    return _NATIVE_REQUIRES + (_ONEDNN_REQUIRES if x86_linux else [])


def _without_onednn(metadata: bytes) -> bytes:
    """Core metadata without the requirement that only compiled kernels use."""
    lines = metadata.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"Requires-Dist: onednn"))


def _record_line(name: str, content: bytes) -> bytes:
    """A line of a wheel's RECORD: path, hash, size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n".encode()


def _rewrite_wheel(path: Path) -> None:
    """Drops oneDNN from the requirements of a wheel of plain Python."""
    with zipfile.ZipFile(path) as wheel:
        files = {info: wheel.read(info) for info in wheel.infolist()}
    metadata = next(i for i in files if i.filename.endswith(".dist-info/METADATA"))
    record = next(i for i in files if i.filename.endswith(".dist-info/RECORD"))
    files[metadata] = _without_onednn(files[metadata])
    lines = files[record].splitlines(keepends=True)
    changed = _record_line(metadata.filename, files[metadata])
    prefix = metadata.filename.encode() + b","
    files[record] = b"".join(changed if line.startswith(prefix) else line for line in lines)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for info, content in files.items():
            wheel.writestr(info, content)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What an isolated build of a wheel installs besides scikit-build-core."""
    return _native_requires() + _scikit.get_requires_for_build_wheel(_settings(config_settings))


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """The same for an editable installation."""
    return _native_requires() + _scikit.get_requires_for_build_editable(_settings(config_settings))


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """A source archive needs no compiler."""
    return _scikit.get_requires_for_build_sdist(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds a wheel, compiled or plain."""
    # The metadata that pip asked for before is not handed on: it may lack a requirement (below).
    name = _scikit.build_wheel(wheel_directory, _settings(config_settings), None)
    if _pure():
        _rewrite_wheel(Path(wheel_directory) / name)
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Builds an editable wheel, compiled or plain."""
    return _scikit.build_editable(wheel_directory, _settings(config_settings), metadata_directory)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Builds a source archive."""
    return _scikit.build_sdist(sdist_directory, config_settings)


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """Writes the wheel's metadata without building it."""
    settings = _settings(config_settings)
    name = _scikit.prepare_metadata_for_build_wheel(metadata_directory, settings)
    if _pure():
        path = Path(metadata_directory) / name / "METADATA"
        path.write_bytes(_without_onednn(path.read_bytes()))
    return name


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """The same for an editable installation."""
    settings = _settings(config_settings)
    return _scikit.prepare_metadata_for_build_editable(metadata_directory, settings)

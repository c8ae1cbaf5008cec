"""PEP 517 back end of this tree: scikit-build-core, or a wheel of plain Python.

With ``MIXFLOW_PURE=1`` nothing is compiled and neither cmake nor nanobind is asked for: the wheel
runs on `mixflow.backends.pure` and NumPy. Otherwise the requirements of the compiled build are
returned by the hook, so that the static list in pyproject.toml stays free of them.
"""

from __future__ import annotations

import os
import platform
import sys
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
    return _scikit.build_wheel(wheel_directory, _settings(config_settings), metadata_directory)


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
    return _scikit.prepare_metadata_for_build_wheel(metadata_directory, _settings(config_settings))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Settings = None
) -> str:
    """The same for an editable installation."""
    settings = _settings(config_settings)
    return _scikit.prepare_metadata_for_build_editable(metadata_directory, settings)

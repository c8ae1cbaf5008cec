"""Prints the prefix that holds oneDNN's header and library, or nothing.

The wheels put ``include/dnnl.hpp`` and ``lib/libdnnl.so.3`` under the environment's prefix; in an
isolated build the prefix is found from the location of an installed distribution.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def prefix() -> Path | None:
    """The first prefix with both files."""
    for name in ("onednn-devel-cpu-gomp", "onednn-cpu-gomp"):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in distribution.files or []:
            root = Path(str(distribution.locate_file(file))).resolve()
            for parent in root.parents:
                header = parent / "include" / "dnnl.hpp"
                if header.exists() and (parent / "lib" / "libdnnl.so.3").exists():
                    return parent
    return None


if __name__ == "__main__":
    found = prefix()
    print(found if found else "", end="")

"""Makes the environment of this interpreter use the package in src/ as it stands.

Writes a ``.pth`` file and the ``mixflow`` console script: what an editable install would do,
without a build.
"""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path

SCRIPT = """#!{python}
import sys
from mixflow.cli import main
sys.exit(main())
"""


def main() -> None:
    """Links src/ into this interpreter's environment."""
    source = Path(__file__).resolve().parent.parent / "src"
    target = Path(site.getsitepackages()[0]) / "mixflow-src.pth"
    target.write_text(f"{source}\n")
    script = Path(sysconfig.get_path("scripts")) / "mixflow"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)


if __name__ == "__main__":
    main()

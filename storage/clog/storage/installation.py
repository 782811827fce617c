"""What to install where something is missing: clog comes as a wheel or a checkout, and is in no
index, so that its extras cannot be installed by name.
"""

import re
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTION = "pyspark-clog"
UPGRADE = "upgrade clog: install a newer wheel, or update the checkout"


def install_extra(extra: str) -> str:
    """Returns the command that installs what an extra of clog names."""
    try:
        stated = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # A zip of the sources, on a Spark cluster.
        stated = []
    marker = re.compile(rf"""\s*;\s*extra\s*==\s*["']{extra}["']""")
    named = [f'"{marker.sub("", one)}"' for one in stated if marker.search(one)]
    if not named:
        return f'install what the extra "{extra}" in pyproject.toml names'
    return f"run pip install {' '.join(named)}"

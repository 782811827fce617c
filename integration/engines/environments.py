"""Environments of their own for engines that need other packages than clog, made with the first
run: Python packages by pip, jars by Spark from Maven Central.
"""

import subprocess
import venv
from pathlib import Path

FOLDER = Path(__file__).parent / ".environments"
_DUCKDB = "1.5.5"
PACKAGES = {
    "duckdb": (
        f"duckdb=={_DUCKDB}",
        *(f"duckdb-extension-{name}=={_DUCKDB}" for name in ("avro", "delta", "iceberg")),
    ),
    "delta_spark": ("pyspark==4.2.0",),
    "iceberg_spark": ("pyspark==4.1.*",),
}


class AbsentError(Exception):
    """An engine cannot be installed; says why."""


def python_of(name: str) -> Path:
    """Returns the Python of an environment, which is made where it is missing.

    Raises:
        AbsentError: its packages cannot be installed.
    """
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "installed"
    if done.exists():
        return python
    venv.create(folder, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES[name]]
    result = subprocess.run(install, check=False, capture_output=True, text=True)
    if result.returncode:
        raise AbsentError(f"{name} cannot be installed: {result.stderr.strip()[-300:]}")
    done.touch()
    return python

"""Environments of their own for engines that need other packages than clog, made with the first
run: Python packages by pip, jars from Maven Central.
"""

import subprocess
import urllib.request
import venv
from hashlib import sha1
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
_DELTA = (
    "delta-spark_4.2_2.13",
    "delta-storage",
    "delta-kernel-api",
    "delta-kernel-defaults",
    "delta-kernel-unitycatalog",
)
JARS = {
    "delta_spark": tuple(("io/delta", name, "4.4.0") for name in _DELTA),
    "iceberg_spark": (("org/apache/iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),),
}
"""As Maven Central has them: group, name, release."""
_MAVEN = "https://repo1.maven.org/maven2"


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


def jars_of(name: str) -> list[Path]:
    """Returns the jars of an environment, which are downloaded where they are missing.

    Only what Spark does not bring itself: resolved with all they depend on, a second Hadoop and
    a second log4j would come along.

    Raises:
        AbsentError: a jar cannot be downloaded, or is not what its checksum says.
    """
    folder = FOLDER / name / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for group, artifact, release in JARS[name]:
        jar = folder / f"{artifact}-{release}.jar"
        if not jar.exists():
            jar.write_bytes(_downloaded(f"{_MAVEN}/{group}/{artifact}/{release}/{jar.name}"))
        found.append(jar)
    return found


def _downloaded(url: str) -> bytes:
    try:
        data, checksum = (
            urllib.request.urlopen(part, timeout=60).read() for part in (url, f"{url}.sha1")
        )
    except OSError as e:
        raise AbsentError(f"{url} cannot be downloaded: {e}") from e
    if sha1(data, usedforsecurity=False).hexdigest() != checksum.decode().strip():
        raise AbsentError(f"{url} is not what its checksum says")
    return data

"""Compiles the catalog against the jars of the pyspark that is installed.

`python connector/jvm/build_jar.py clog-catalog.jar`; needs a JDK, 17 or newer.
"""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path


def build_jar(jar: Path) -> None:
    """Writes the jar; raises if the compiler warns."""
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise SystemExit("no pyspark: pip install pyspark")
    jars = Path(pyspark.origin).parent / "jars"
    sources = sorted((Path(__file__).parent / "src").rglob("*.java"))
    lint = ["-Xlint:all,-classfile,-path,-processing", "-Werror"]
    with tempfile.TemporaryDirectory() as classes:
        javac = ["javac", "--release", "17", *lint, "-cp", f"{jars}/*", "-d", classes]
        subprocess.run([*javac, *map(str, sources)], check=True)
        subprocess.run(["jar", "--create", "--file", str(jar), "-C", classes, "."], check=True)


if __name__ == "__main__":
    build_jar(Path(sys.argv[1]).absolute())

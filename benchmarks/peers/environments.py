"""Environments for the peers, in `.environments/`, made once and then kept.

- `own`: the Python that runs the benchmarks.
- `spark`: one Spark release for clog, Spark's Kafka connector and Delta Lake.
- `tables`: the Python libraries delta-rs, PyIceberg and DuckDB.
- `quix`: quix-streams, which wants an older confluent-kafka; tests/kafka use it, too.
- `pypaimon`: PyPaimon, which wants older versions of what the others use.
- `paimon`: an older Spark, the newest for which Paimon's connector is on Maven Central here.
- Jars (Kafka's broker, connectors) are folders that Maven copies from Maven Central.

Two candidates of one comparison share an environment where they can: then they also share a round.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent
ROOT = BENCHMARKS.parent
FOLDER = BENCHMARKS / ".environments"

VERSIONS = {"spark": "4.2.0", "kafka": "4.3.1", "delta": "4.4.0", "paimon": "0.9.0"}
APICURIO = "3.3.3"
VERSITYGW = "v1.8.0"
JARS = {
    "kafka": (),  # all
    "spark": (
        *("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients"),
        *("commons-pool2", "delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api"),
        *("delta-kernel-defaults", "delta-kernel-unitycatalog", "unitycatalog-client"),
        "unitycatalog-hadoop",
    ),
    "paimon": ("paimon-spark-3.5",),
}
"""Artifacts of each profile of `pom.xml`; Spark has the others."""


@dataclass(frozen=True, slots=True)
class Requirements:
    packages: tuple[str, ...]
    clog_extras: str | None = None


ENVIRONMENTS = {
    "spark": Requirements(("pyspark==4.2.*", "pandas>=2.2,<3"), "cli,s3"),  # `mapInArrow` wants it
    "tables": Requirements(
        (
            *("deltalake>=1.6", "pyiceberg[pyarrow,sql-sqlite]>=0.11"),
            *("confluent-kafka>=2.8", "duckdb>=1.4", "moto[server]>=5.1"),
            "aiobotocore[boto3]",  # the boto3 that goes with it; pip would try one after the other
        ),
        "s3",
    ),
    "quix": Requirements(("quixstreams==3.28.*",), "kafka"),
    "pypaimon": Requirements(("pypaimon>=2",), ""),
    "paimon": Requirements(("pyspark==3.5.*", "pyarrow", "numpy", "setuptools")),
}


class UnavailableError(Exception):
    """A peer cannot be had here; the message says why."""


def python_of(name: str) -> Path:
    """The environment's Python; makes the environment where it is missing."""
    if name == "own":
        return Path(sys.executable)
    needed = ENVIRONMENTS[name]
    folder = FOLDER / name
    python = folder / "bin" / "python"
    stamp = folder / ("made-" + hashlib.sha256(repr(needed).encode()).hexdigest()[:12])
    if stamp.exists():
        return python
    print(f"making the environment {name} …", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    wanted = list(needed.packages)
    if needed.clog_extras is not None:
        extras = f"[{needed.clog_extras}]" if needed.clog_extras else ""
        wanted += ["-e", f"{ROOT}{extras}"]
    _run([str(python), "-m", "pip", "install", "--quiet", *wanted], f"pip for {name}")
    stamp.touch()
    return python


def jars(name: str) -> Path:
    """The folder with the jars of a profile of `pom.xml`; Maven copies them when it is missing."""
    folder = FOLDER / f"jars-{name}"
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        raise UnavailableError(f"the jars of {name} need Maven, which is not installed")
    partial = folder.with_suffix(".partial")
    command = [
        *("mvn", "-q", "-B", "-f", str(BENCHMARKS / "peers" / "pom.xml"), "-P", name),
        *(f"-D{peer}.version={version}" for peer, version in VERSIONS.items()),
        *("dependency:copy-dependencies", "-DincludeScope=runtime"),
        *(f"-DoutputDirectory={partial}", f"-DincludeArtifactIds={','.join(JARS[name])}"),
    ]
    _run(command, f"Maven for {name}")
    partial.rename(folder)
    return folder


def apicurio() -> Path:
    """The folder of Apicurio Registry, which Maven copies when it is missing."""
    folder = FOLDER / f"apicurio-{APICURIO}"
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        raise UnavailableError("Apicurio Registry needs Maven, which is not installed")
    partial = folder.with_suffix(".partial")
    artifact = f"io.apicurio:apicurio-registry-app:{APICURIO}:tar.gz:all"
    command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
    _run([*command, f"-DoutputDirectory={partial}"], "Maven for Apicurio Registry")
    (archive,) = partial.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(partial, filter="data")
    archive.unlink()
    partial.rename(folder)
    return folder


def versitygw() -> Path:
    """The program of Versity's S3 gateway, which Go builds when it is missing."""
    found = FOLDER / "go" / "versitygw"
    if found.exists():
        return found
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise UnavailableError("Versity's S3 gateway needs Go, which is not installed")
    package = f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW}"
    _run(["env", f"GOBIN={found.parent}", go, "install", package], "Go for Versity's S3 gateway")
    return found


def java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None:
        raise UnavailableError("no Java; Spark and Kafka need Java 17 or newer")
    return found


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise UnavailableError(f"{what} failed: {said[0] if said else done.returncode}")

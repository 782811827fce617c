"""Runs the tests with the lowest, or the newest, supported releases of clog's dependencies.

    python integration/compat/run.py lowest
    python integration/compat/run.py newest tests/spark
    python integration/compat/run.py lowest --core      # a minute; a part of ./test all

The lowest are exactly the lower bounds in ``pyproject.toml``: a bound is a claim, and this tests
it. ``--core`` leaves out Spark, S3 and nightly tests. Each set has its own environment beside that
of the tests, which is created when it is missing and updated when ``pyproject.toml`` changed.
Packages that only the tests need are the newest in either set.
"""

import argparse
import os
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXTRAS = ("spark", "s3")
"""Of the optional packages these are tested everywhere."""
TESTS = ("tests/unit", "tests/contract", "tests/format", "tests/spark")
CORE_TESTS = (
    "tests/unit/storage",
    "tests/unit/state",
    "--ignore=tests/unit/storage/commit",  # These meet the dependencies through the others.
    "--ignore=tests/unit/storage/transactions",
    "tests/unit/cleaner/passes",
    "tests/format",
    "-m",
    "not nightly",
)
CORE_TOOLS = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
NEWEST_PYTHON = (3, 13)
"""For newer ones the lowest releases have no wheels."""


def bounds(*, core: bool) -> dict[str, str]:
    """Returns the lower bound of each package that clog needs, with this Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [need for extra in EXTRAS if not core for need in extras[extra]]
    needs = map(Requirement, [*project["dependencies"], *optional])
    return {
        need.name: bound.version
        for need in needs
        for bound in need.specifier
        if bound.operator == ">=" and (need.marker is None or need.marker.evaluate())
    }


def environment(which: str, *, core: bool) -> Path:
    """Returns the environment's Python, with everything installed."""
    beside = os.environ.get("CLOG_VENV", ROOT / ".venv")
    folder = Path(f"{beside}-{which}{'-core' if core else ''}")
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, upgrade_deps=True)  # Groups need pip 25.1.
    needs = (ROOT / "pyproject.toml").read_text()
    stamp = folder / "installed-pyproject.toml"
    if which == "lowest" and stamp.exists() and stamp.read_text() == needs:
        return python
    pins = [f"{name}=={bound}" for name, bound in bounds(core=core).items()]
    chosen = pins if which == "lowest" else ["--upgrade", "--upgrade-strategy", "eager"]
    clog = ["-e", str(ROOT), *(CORE_TOOLS if core else ("--group", "test-all"))]
    print(f"installing the {which} supported releases into {folder} (a minute or more)", flush=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--no-compile", *clog, *chosen], check=True, cwd=ROOT)
    stamp.write_text(needs)
    return python


def versions(*, core: bool) -> str:
    """Returns what is installed in this environment, in a line."""
    return ", ".join(f"{name} {version(name)}" for name in bounds(core=core))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("tests", nargs="*", help="as for pytest")
    parser.add_argument("--core", action="store_true", help="what does without Spark and S3")
    args = parser.parse_intermixed_args()
    if args.which == "lowest" and sys.version_info[:2] > NEWEST_PYTHON:
        print(f"skipped: the lowest releases are not for Python {sys.version.split()[0]}")
        return 0
    python = environment(args.which, core=args.core)
    env = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import run"
    said = f"{here}; print(run.versions(core={args.core}), flush=True)"
    subprocess.run([python, "-c", said], check=True)
    tests = args.tests or (CORE_TESTS if args.core else TESTS)
    command = [python, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *tests]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Runs the tests with the lowest, or the newest, releases of what clog stands on.

    python integration/compat/run.py lowest
    python integration/compat/run.py newest tests/spark

The lowest are the lower bounds in ``pyproject.toml``, to the letter: a bound is a claim, this is
its test. Each set has an environment of its own in ``.venv-lowest`` or ``.venv-newest``, made when
it is missing and brought up to date otherwise. What is only for testing is as new as there is.
"""

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("spark", "s3")
"""Of the optional packages these are tested everywhere."""
TESTS = ("tests/unit", "tests/contract", "tests/format", "tests/spark")


def bounds() -> dict[str, str]:
    """The lower bound of each package that clog needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(need for extra in EXTRAS for need in extras[extra])]
    found = [re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", need) for need in needed]
    return {match[1]: match[2] for match in found if match}


def environment(which: str) -> Path:
    """Its Python, with everything installed."""
    folder = ROOT / f".venv-{which}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pins = [f"{name}=={bound}" for name, bound in bounds().items()]
    chosen = pins if which == "lowest" else ["--upgrade", "--upgrade-strategy", "eager"]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "-e", f"{ROOT}[test]", *chosen], check=True, cwd=ROOT)
    return python


def versions() -> str:
    """What is installed in this environment, in a line."""
    return ", ".join(f"{name} {version(name)}" for name in bounds())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("tests", nargs="*", default=TESTS, help="as for pytest")
    args = parser.parse_args()
    python = environment(args.which)
    env = {**os.environ, "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import run"
    subprocess.run([python, "-c", f"{here}; print(run.versions())"], check=True)
    command = [python, "-m", "pytest", "-q", *args.tests]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

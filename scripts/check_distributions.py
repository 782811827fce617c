"""Checks a wheel and an sdist as their users meet them: each is installed into an empty
environment and used in a folder that is not the repository.

    python scripts/check_distributions.py dist

It takes what is missing from the index, so it needs a minute and a network.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

USE = """
from clog.cleaner import Cleaner
from clog.storage import Log

log = Log.create("orders")
log.append([{"key": "a", "value": "1"}, {"key": "a", "value": "2"}])
log.roll()
Cleaner(log).run_once(force=True)
assert [row["value"] for row in log.table().to_arrow().to_pylist()] == [b"2"]
assert sum(batch.num_rows for batch in log.read()) == 1
"""


def check(distribution: Path) -> None:
    """Installs one and uses it; a command that fails ends the program."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/venv", with_pip=True)
        programs = Path(folder, "venv", "bin")
        install = [
            programs / "python",
            "-m",
            "pip",
            "install",
            "-q",
            f"{distribution.resolve()}[cli]",
        ]
        for command in (
            install,
            [programs / "python", "-c", USE],
            [programs / "clog", "describe", "orders"],
            [programs / "clog", "verify", "orders"],
        ):
            subprocess.run(command, cwd=folder, check=True)
    print(f"{distribution.name}: installed and used")


def main() -> None:
    """Checks each distribution of a folder."""
    found = sorted(Path(sys.argv[1]).glob("pyspark_clog-*"))
    if len(found) != 2:
        sys.exit(f"{sys.argv[1]} has {len(found)} distributions, not a wheel and an sdist")
    for distribution in found:
        check(distribution)


if __name__ == "__main__":
    main()

"""The programs of `benchmarks/parts`: one part of clog each, beside its limit.

Each runs alone, has its own options and prints its own tables; its docstring says what is compared.
"""

import subprocess
import sys
from pathlib import Path

from harness.measure import Result

TITLE = "Parts of clog beside their limits"
ENVIRONMENT = "own"
ENGINE = "Python"
SIZES = {
    "smallest": {"rows": 4_000, "rounds": 1},
    "quick": {"rows": 400_000, "rounds": 2},
    "full": {"rows": 2_000_000, "rounds": 3},
}
FOLDER = Path(__file__).parent.parent / "parts"


def run(size: dict[str, int], folder: Path, result: Result) -> None:
    rows, rounds = str(size["rows"]), str(size["rounds"])
    keys = str(size["rows"] // 4)
    programs = (
        ("offset_map", "--rows", rows, "--keys", keys, "--repeat", rounds),
        ("cleaning", "--records", rows, "--keys", keys, "--rounds", rounds),
        ("table_view", "--records", rows, "--keys", keys, "--repeat", rounds),
        ("state_table", "--keys", keys, "--gets", "1000"),
        ("key_index", "--keys", rows, "--dirty", str(size["rows"] // 20)),
    )
    for name, *arguments in programs:
        command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
        if name in ("table_view", "state_table"):
            command += ["--folder", str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        result.text += f"{name}.py {' '.join(arguments)}\n\n{done.stdout.rstrip()}\n\n"

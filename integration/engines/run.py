"""DuckDB reads published views of logs with random histories, and is compared with the log itself.

    python integration/engines/run.py [--histories 20] [--seed 1]

See README.md in this folder.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import AbsentError, python_of
from histories import FORMATS, history, rows_of

FOLDER = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        python_of("duckdb")
    except AbsentError as e:
        print(f"skipped: {e}")
        return 0
    work = Path(tempfile.mkdtemp(prefix="clog-engines-"))
    try:
        seeds = range(args.seed, args.seed + args.histories)
        asked = [ask for seed in seeds for ask in _history(work / str(seed), seed)]
        found = _read_by_duckdb([ask["sql"] for ask in asked])
    finally:
        shutil.rmtree(work)
    wrong = [
        f"{ask['sql']}: {len(rows)} rows, {len(ask['rows'])} expected"
        for ask, rows in zip(asked, found, strict=True)
        if ask["rows"] != rows
    ]
    for text in wrong:
        print(f"WRONG: {text}")
    rows = sum(len(ask["rows"]) for ask in asked)
    print(f"{args.histories} histories, {len(asked)} views, {rows} rows; {len(wrong)} wrong")
    return 1 if wrong else 0


def _history(path: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Yields what to ask of the views of one log, and what it must say."""
    log = history(path, seed)
    newest = {name: log.publish(name).table_version for name in FORMATS}
    rows = rows_of(log)
    yield {"sql": f"delta_scan('{path}')", "rows": rows}
    metadata = path / "metadata" / f"v{newest['iceberg']}.metadata.json"
    yield {"sql": f"iceberg_scan('{metadata}')", "rows": rows}


def _read_by_duckdb(scans: list[str]) -> list[list[list[Any]]]:
    done = subprocess.run(
        [str(python_of("duckdb")), str(FOLDER / "duckdb_reader.py")],
        input=json.dumps(scans),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: list[list[list[Any]]] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())

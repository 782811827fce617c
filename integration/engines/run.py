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
import venv
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from clog.cleaner import Cleaner
from clog.storage import Log

FOLDER = Path(__file__).parent
ENVIRONMENT = FOLDER / ".environments" / "duckdb"
PACKAGES = (
    "duckdb==1.5.5",
    *(f"duckdb-extension-{name}==1.5.5" for name in ("avro", "delta", "iceberg")),
)
CONFIG = {
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "0",
    "segment.bytes": "2k",
    "file.delete.delay.ms": "1h",
}
FORMATS = ("delta", "iceberg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
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
    random = Random(seed)
    partitions = random.randint(1, 3)
    log = Log.create(str(path), partitions, CONFIG, {"fsync": False})
    newest = dict.fromkeys(FORMATS, 0)
    for _ in range(random.randint(3, 12)):
        match random.choice(["append", "append", "append", "clean", "delete", "publish"]):
            case "append":
                log.append([_record(random) for _ in range(random.randint(1, 40))])
            case "clean":
                log.roll()
                Cleaner(log).run_once(force=True)
            case "delete":
                ends = log.end_offsets()
                log.delete_records({p: random.randint(0, end) for p, end in ends.items()})
            case "publish":
                for name in FORMATS:
                    log.publish(name)
    for name in FORMATS:
        newest[name] = log.publish(name).table_version
    table = log.table().to_arrow(columns=["key", "value", "timestamp"])
    table = table.set_column(2, "timestamp", table.column("timestamp").cast("int64"))
    columns = [column.to_pylist() for column in table.columns]
    rows = sorted(
        [key.hex(), value.hex(), time_us // 1000]
        for key, value, time_us in zip(*columns, strict=True)
    )
    yield {"sql": f"delta_scan('{path}')", "rows": rows}
    metadata = path / "metadata" / f"v{newest['iceberg']}.metadata.json"
    yield {"sql": f"iceberg_scan('{metadata}')", "rows": rows}


def _record(random: Random) -> dict[str, Any]:
    value = None if random.random() < 0.1 else str(random.random())
    return {
        "key": f"k{random.randint(0, 30)}",
        "value": value,
        "timestamp": random.randint(1, 10**9),
        "headers": {"trace": b"1"} if random.random() < 0.2 else None,
    }


def _read_by_duckdb(scans: list[str]) -> list[list[list[Any]]]:
    done = subprocess.run(
        [str(_python()), str(FOLDER / "duckdb_reader.py")],
        input=json.dumps(scans),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    found: list[list[list[Any]]] = json.loads(done.stdout)
    return found


def _python() -> Path:
    """The Python of DuckDB's environment, which is made where it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", *PACKAGES]
        subprocess.run(install, check=True)
    return python


if __name__ == "__main__":
    sys.exit(main())

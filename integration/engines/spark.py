"""Delta's Spark and Iceberg's read published views of logs with random histories, and try to write
to copies of them. Nothing of clog's may be missing or changed after that, and the next publication
makes each view whole.

    python integration/engines/spark.py [--engine delta] [--histories 10] [--seed 1]

See README.md in this folder.
"""

import argparse
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from environments import AbsentError, jars_of, python_of
from histories import history, rows_of

from clog.cleaner import Cleaner
from clog.cleaner.duties import Work
from clog.cleaner.duties.sweep import sweep_orphans
from clog.storage import Log, ManualClock, SystemClock
from clog.storage.diagnostics.verify import verify_log
from clog_testing.published import delta_rows, iceberg_rows

FOLDER = Path(__file__).parent
ANSWER = "answer: "
DAY_S = 86_400
PUBLISHED_DAYS, STRAYS_DAYS = 4, 3
"""How long ago views were published first, and refused writers left what the sweep is to take."""
ENVIRONMENTS = {"delta": "delta_spark", "iceberg": "iceberg_spark"}
TABLE = {"delta": "delta.`{path}`", "iceberg": "c.db.`{name}`"}
WRITES = {
    "append": "INSERT INTO {table} (key, value) SELECT key, value FROM strangers",
    "overwrite": "INSERT OVERWRITE {table} SELECT key, value, null, null FROM strangers",
    "update": "UPDATE {table} SET value = key",
    "delete": "DELETE FROM {table} WHERE key IS NOT NULL",
    "merge": (
        "MERGE INTO {table} t USING strangers s ON t.key = s.key"
        " WHEN NOT MATCHED THEN INSERT (key, value) VALUES (s.key, s.value)"
        " WHEN NOT MATCHED BY SOURCE THEN DELETE"
    ),
}
MAINTENANCE = {
    "delta": {
        "optimize": "OPTIMIZE {table}",
        "vacuum": "VACUUM {table} RETAIN 0 HOURS",
        "vacuum lite": "VACUUM {table} LITE RETAIN 0 HOURS",
        "purge": "REORG TABLE {table} APPLY (PURGE)",
        "restore": "RESTORE TABLE {table} TO VERSION AS OF 0",
        "alter": "ALTER TABLE {table} SET TBLPROPERTIES ('delta.appendOnly' = 'true')",
        "drop feature": "ALTER TABLE {table} DROP FEATURE clogView",
    },
    "iceberg": {
        "expire": (
            "CALL c.system.expire_snapshots(table => 'db.{name}', retain_last => 1,"
            " older_than => TIMESTAMP '2100-01-01 00:00:00')"
        ),
        "rewrite": (
            "CALL c.system.rewrite_data_files(table => 'db.{name}',"
            " options => map('rewrite-all', 'true'))"
        ),
        "rewrite manifests": "CALL c.system.rewrite_manifests('db.{name}')",
        "rewrite deletes": "CALL c.system.rewrite_position_delete_files('db.{name}')",
        "remove orphans": (
            "CALL c.system.remove_orphan_files(table => 'db.{name}',"
            " older_than => TIMESTAMP '2000-01-01 00:00:00')"
        ),
        "alter": "ALTER TABLE {table} SET TBLPROPERTIES ('x' = 'y')",
    },
}
KEPT_OUT = {"delta": {*WRITES}, "iceberg": set[str]()}
"""What an engine must refuse. Of all else it is told whether it came in: then it made a version of
the view, which the next publication replaces. Nothing of clog's may go, whatever it is.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=ENVIRONMENTS)
    parser.add_argument("--histories", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", help="of the attempts to write only these")
    args = parser.parse_args()
    failed = 0
    for engine in [args.engine] if args.engine else ENVIRONMENTS:
        try:
            python = python_of(ENVIRONMENTS[engine])
            jars = jars_of(ENVIRONMENTS[engine])
        except AbsentError as e:
            print(f"{engine}: skipped, {e}")
            continue
        seeds = range(args.seed, args.seed + args.histories)
        failed += _run(engine, python, jars, seeds, args.only)
    return 1 if failed else 0


def _run(engine: str, python: Path, jars: list[Path], seeds: range, only: list[str] | None) -> int:
    """Has one engine read and write; returns how much was wrong."""
    work = Path(tempfile.mkdtemp(prefix="clog-engines-"))
    try:
        reads = [read for seed in seeds for read in _reads(work / f"read{seed}", engine, seed)]
        copies = _copies(work / "db", engine, only)
        asked = {
            "engine": engine,
            "jars": [str(jar) for jar in jars],
            "warehouse": str(work),
            "reads": [{"path": path, "version": version} for path, version, _ in reads],
            "writes": [sql for _, sql in copies.values()],
        }
        answers = _answers(python, asked)
        wrong = [
            f"{path}, version {version}: {len(mine)} rows, {len(rows)} expected"
            for (path, version, rows), mine in zip(reads, answers, strict=False)
            if rows != mine
        ]
        print(f"  {len(reads)} views read, {len(wrong)} wrong", flush=True)
        refused = 0
        for (what, (copy, _)), error in zip(copies.items(), answers, strict=True):
            strays = copy.strays()
            wrong += [f"{what}: {text}" for text in copy.problems(what, error)]
            refused += error is not None
            how = "came in" if error is None else f"refused, {_reason(error)}"
            print(f"  {what}: {how}; {copy.fate(strays)}", flush=True)
    finally:
        shutil.rmtree(work)
    for text in wrong:
        print(f"WRONG: {text}")
    rows = sum(len(rows) for _, _, rows in reads)
    print(
        f"{engine}: {len(reads)} views, {rows} rows read; {refused} of {len(copies)} writes"
        f" refused; {len(wrong)} wrong"
    )
    return len(wrong)


def _reason(error: str) -> str:
    """Returns the line of a stack of Spark's that says what is wrong."""
    said = re.search(r"\[[A-Z_.0-9]+\][^\n]*", error)
    return (said[0] if said else " ".join(error.split()))[:120]


def _answers(python: Path, asked: dict[str, Any]) -> Iterator[Any]:
    """Yields what the engine answers to each read and each write, as it comes."""
    command = [str(python), str(FOLDER / "spark_engine.py")]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        for line in process.stdout:
            if line.startswith(ANSWER):
                yield json.loads(line.removeprefix(ANSWER))
        if process.wait():
            said.seek(0)
            sys.exit(said.read()[-6000:])


def _reads(path: Path, engine: str, seed: int) -> Iterator[tuple[str, int | None, list[Any]]]:
    """Yields views of a log, as (path, version of the view, rows)."""
    log = history(path, seed)
    first = log.publish(engine)
    before = rows_of(log, first.version)
    log.append([{"key": "k1", "value": "newer"}, {"key": "another", "value": "1"}])
    log.publish(engine)
    yield str(path), None, rows_of(log)
    if engine == "delta":
        yield str(path), first.table_version, before


class _Said(logging.Handler):
    """Collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class _Copy:
    """A copy of a published log that somebody tries to write to."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path, self.engine = path, engine
        self.log = Log.open(str(path))
        self.log.publish(engine)
        self.rows = rows_of(self.log)
        self.before = _contents(path)

    def strays(self) -> set[str]:
        """Returns the files that are new."""
        return _contents(self.path).keys() - self.before.keys()

    def problems(self, what: str, error: str | None) -> Iterator[str]:
        """Yields what is wrong after somebody tried."""
        if error is None and what in KEPT_OUT[self.engine]:
            yield "it came in"
        now = _contents(self.path)
        kept = {p: d for p, d in self.before.items() if p != "metadata/version-hint.text"}
        gone = {path for path, data in kept.items() if now.get(path) != data}
        if gone:
            yield f"of {len(self.before)} files {sorted(gone)} are missing or changed"
        if rows_of(self.log) != self.rows:
            yield "the log's own table is another"
        self.log.publish(self.engine)
        if self._shown() != self.rows:
            yield "the view that was published next is not the table"
        self.log.append([{"key": "later", "value": "1"}])
        self.log.publish(self.engine)
        Cleaner(self.log).run_once()
        if self._shown() != rows_of(self.log):
            yield "the view of the next record is not the table"
        if findings := verify_log(self.log.handle.standing.root).findings:
            yield f"clog verify finds {findings}"

    def fate(self, strays: set[str]) -> str:
        """Returns which of the files that are new a sweep leaves once they are old, and
        whether it names one.
        """
        if not strays:
            return "left nothing behind"
        old_s = self.log.handle.clock.now_ms() / 1000 - STRAYS_DAYS * DAY_S
        for path in strays:
            if (self.path / path).exists():  # The next publication may have replaced it.
                os.utime(self.path / path, (old_s, old_s))
        said = _Said()
        logger = logging.getLogger("clog")
        logger.addHandler(said)
        try:
            sweep_orphans(Work(self.log.handle, self.log.handle.clock.now_ms()))
        finally:
            logger.removeHandler(said)
        folders = Counter(path.partition("/")[0][:5] for path in strays)
        left = sum((self.path / path).exists() for path in strays)
        told = (
            "told of" if any("of its view left" in text for text in said.texts) else "not told of"
        )
        return f"left behind {dict(folders)}, of which the sweep leaves {left}, {told}"

    def _shown(self) -> list[Any]:
        read = delta_rows if self.engine == "delta" else iceberg_rows
        pairs, _ = read(self.log.handle.standing.root)
        times = {(key, value): time for key, value, time in rows_of(self.log)}
        return sorted(
            [key.hex(), value.hex(), times.get((key.hex(), value.hex()))] for key, value in pairs
        )


def _copies(folder: Path, engine: str, only: list[str] | None) -> dict[str, tuple[_Copy, str]]:
    """Returns, for each attempt, a copy and the statement."""
    folder.mkdir()
    original = folder / "original"
    published_ms = SystemClock().now_ms() - PUBLISHED_DAYS * DAY_S * 1000
    log = history(original, seed=7, clock=ManualClock(published_ms))
    log.publish(engine)
    log.append([{"key": f"k{i}", "value": "newest"} for i in range(9)])
    log.publish(engine)
    found = {}
    attempts = {**WRITES, **MAINTENANCE[engine]}
    for number, what in enumerate(only or attempts):
        sql = attempts[what]
        name = f"copy{number}"
        shutil.copytree(original, folder / name)
        table = TABLE[engine].format(path=folder / name, name=name)
        statement = sql.format(table=table, name=name)
        found[what] = (_Copy(folder / name, engine), statement)
    return found


def _contents(path: Path) -> dict[str, bytes]:
    return {
        str(found.relative_to(path)): found.read_bytes()
        for found in path.rglob("*")
        if found.is_file() and not found.name.endswith(".crc")
    }


if __name__ == "__main__":
    sys.exit(main())

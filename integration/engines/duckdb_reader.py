"""Runs in DuckDB's environment: reads the scans that it is told on standard input, and prints the
sorted rows of each as JSON.
"""

import json
import sys
import sysconfig
from pathlib import Path

import duckdb

SITE = Path(sysconfig.get_paths()["purelib"])

connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
for name in ("avro", "delta", "iceberg"):
    (extension,) = (SITE / f"duckdb_extension_{name}").rglob("*.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
found = []
for scan in json.load(sys.stdin):
    query = f"SELECT hex(key), hex(value), epoch_ms(timestamp) FROM {scan}"
    rows = connection.execute(query).fetchall()
    found.append(sorted([key.lower(), value.lower(), time] for key, value, time in rows))
json.dump(found, sys.stdout)

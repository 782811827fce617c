"""What a freshly started process imports: Spark starts several for a query, and new ones after a
minute of rest.
"""

import subprocess
import sys

import pyarrow as pa
import pytest

COLD_RUN = """
import sys
import pyarrow as pa
from clog.connector import ClogDataSource
from pyspark.sql.types import (
    ArrayType, BinaryType, IntegerType, StringType, StructField, StructType,
)

url, rows = sys.argv[1:]
header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
schema = StructType([
    StructField("key", StringType()), StructField("value", StringType()),
    StructField("partition", IntegerType()), StructField("headers", ArrayType(header)),
])
sink = ClogDataSource({"path": url, "config.message.timestamp.type": sys.stdin.read()})
writer = sink.writer(schema, False)
def append():
    with pa.OSFile(rows) as file:
        writer.commit([writer.write(iter(pa.ipc.open_stream(file).read_all().to_batches()))])
append()
source = ClogDataSource({"path": url, "startingOffsets": "earliest", "includeHeaders": "true"})
reader = source.streamReader(source.schema())
start = reader.initialOffset()
end = reader.latestOffset(start, reader.getDefaultReadLimit())
read = [b for p in reader.partitions(start, end) for b in reader.read(p)]
append()
source = ClogDataSource({"path": url, "view": "table"})
reader = source.reader(source.schema())
latest = [b for p in reader.partitions() for b in reader.read(p)]
print(*(sum(batch.num_rows for batch in some) for some in (read, latest)))
print(*sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_cold_batch_imports_nothing_that_it_does_not_use(tmp_path, timestamp_type):
    """Source, sink and table view, all columns, nulls among them: no pandas, which Arrow imports if
    it is installed and it gets Python or NumPy values, and no filesystem's client.
    """
    pytest.importorskip("pandas")
    rows = pa.table(
        {
            "key": pa.array(["a", "b", "a key of many bytes"]),
            "value": pa.array(["1", None, "3"]),
            "partition": pa.array([1, None, 0], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "i", "value": None}], [], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    with pa.OSFile(str(tmp_path / "rows"), "w") as file, pa.ipc.new_stream(file, rows.schema) as to:
        to.write_table(rows)
    command = [sys.executable, "-c", COLD_RUN, tmp_path / "orders", tmp_path / "rows"]
    done = subprocess.run(command, input=timestamp_type, capture_output=True, text=True, check=True)
    counts, modules = done.stdout.splitlines()
    assert counts == "3 2"
    assert {"pyarrow", "clog"} <= set(modules.split())
    heavy = {"pandas", "fsspec", "s3fs", "aiohttp", "botocore", "rich", "click", "duckdb", "polars"}
    assert not heavy & set(modules.split())

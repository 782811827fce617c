"""A log that evolves under a running query, and under frames that were made before (S61)."""

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from tests.unit.evolutions import EVOLUTIONS

from clog.connector import read_log, read_table
from clog.storage import Log

FRAMES = [e for e in EVOLUTIONS if e.name != "large"]


@pytest.mark.core
def test_a_float_widened_under_a_stream_is_told_and_then_read_unrounded(queries, tmp_path):
    """While it runs, and started again as it was loaded; loaded again, with the same checkpoint, it
    has each record once.
    """
    evolution = next(e for e in EVOLUTIONS if e.name == "rounded")
    log = evolution.create(str(tmp_path / "log"))
    schema = {"key": pa.int32(), "value": pa.struct([("x", pa.float64())])}
    target = Log.create(str(tmp_path / "target"), 1, schema=schema)

    def started(frame):
        rows = frame.select("key", "value").writeStream.format("clog")
        return rows.option("checkpointLocation", str(tmp_path / "check")).start(target.url)

    options = {"startingOffsets": "earliest", "pollInterval": "0s"}
    frame = queries.stream(log.url, **options)
    query = started(frame)
    query.processAllAvailable()
    log.evolve(**evolution.change)
    log.append([evolution.record(2, evolution.after)])
    told = "value.x of .* is double since version 2, .* load the source again: .* stays valid"
    with pytest.raises(StreamingQueryException, match=told):
        query.processAllAvailable()
    with pytest.raises(StreamingQueryException, match=told):
        started(frame).processAllAvailable()
    again = started(queries.stream(log.url, **options))
    again.processAllAvailable()
    again.stop()
    values = [row["value"]["x"] for batch in target.read() for row in batch.to_pylist()]
    assert values == [evolution.before, evolution.after]


def test_frames_of_a_version_show_it_after_the_log_evolved(spark, tmp_path):
    """Of Spark's own scan, kept from before, cached and made since."""
    for evolution in FRAMES:
        log = evolution.create(str(tmp_path / evolution.name))
        kept = [read_table(spark, log.url), read_log(spark, log.url)]
        cached = read_table(spark, log.url).cache()
        assert cached.count() == 1
        log.evolve(**evolution.change)
        log.append([evolution.record(3, evolution.after)])
        later = [read_table(spark, log.url, version=1), read_table(spark, log.url)]
        for frames, before in (([*kept, cached], evolution.before), (later, evolution.shown)):
            for frame in frames:
                found = [row.value.asDict(recursive=True)["x"] for row in frame.collect()]
                assert (before if "map" not in evolution.name else dict(before)) in found
        assert kept[0].count() == 1
        assert later[1].count() == 2
        cached.unpersist()

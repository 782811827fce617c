"""A Spark driver in a process of its own, whose sink meets another in its commit, or dies there.

    python driver.py SOURCE TARGET CHECKPOINT FOLDER meet|die

The classes are made in functions, so that Spark's workers get them by value.
"""

import os
import signal
import sys
import time
from pathlib import Path

WAITS_MAX, WAIT_S = 4000, 0.05


def waited_for(path, process=None):
    """Waits for a file that another process makes, as long as it lives."""
    for _ in range(WAITS_MAX):
        if path.exists():
            return
        if process is not None and process.poll() is not None:
            break
        time.sleep(WAIT_S)
    raise TimeoutError(f"{path} is not there")


def sink_with(name, commit):
    """The data source ``name``: clog, with another commit of its stream writer."""
    from clog.connector import ClogDataSource
    from clog.connector.options.settings import write_options
    from clog.connector.write.stream_writer import ClogStreamWriter

    class Writer(ClogStreamWriter):
        def commit(self, messages, batchId):  # noqa: N803
            commit(super().commit, messages, batchId)

    class Source(ClogDataSource):
        @classmethod
        def name(cls):
            return name

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Writer(write_options(self.options), schema, overwrite=overwrite)

    return Source


def meeting_sink(folder, me, other):
    """Its commit waits until that of the other one has begun; ``<me>.done`` says that it
    returned.
    """
    wait = waited_for

    def commit(commit_to_log, messages, batch_id):
        (folder / me).touch()
        wait(folder / other)
        commit_to_log(messages, batch_id)
        (folder / f"{me}.done").touch()

    return sink_with(f"clog_{me}", commit)


def dying_sink(folder):
    """Its commit ends the driver and its JVM by SIGKILL when the log has the batch."""

    def commit(commit_to_log, messages, batch_id):
        commit_to_log(messages, batch_id)
        for pid in (folder / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)

    return sink_with("clog_dying", commit)


def main():
    source, target, checkpoint, folder, mode = sys.argv[1:]
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    pids = Path(folder, "pids")
    pids.write_text(f"{os.getpid()} {spark.sparkContext._gateway.proc.pid}")
    sinks = {
        "meet": lambda: meeting_sink(Path(folder), "first", "second"),
        "die": lambda: dying_sink(Path(folder)),
    }
    sink = sinks[mode]()
    spark.dataSource.register(sink)
    query = (
        spark.readStream.format("clog").option("startingOffsets", "earliest").load(source)
        .select("key", "value").writeStream.format(sink.name())
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start(target)
    )  # fmt: skip
    query.awaitTermination()


if __name__ == "__main__":
    main()

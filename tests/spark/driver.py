"""A Spark driver in a process of its own, whose sink meets another in its commit, or dies there.

    python driver.py SOURCE TARGET CHECKPOINT FOLDER meet|die|N

N: it writes two frames into two logs, in a transaction, and dies after its Nth commit of one.

The classes are made in functions, so that Spark's workers get them by value.
"""

import os
import signal
import sys
import time
from pathlib import Path

WAITS_MAX, WAIT_S = 4000, 0.05


def waited_for(path, process=None):
    """Waits for a file that another process creates, for as long as that takes."""
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
    from clog.connector.options import write_options
    from clog.connector.write.writers import ClogStreamWriter

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
    """Its commit waits until the other one's has started; ``<me>.done`` shows that it returned."""
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
        die(folder)

    return sink_with("clog_dying", commit)


def die(folder):
    """Ends the driver and its JVM."""
    for pid in (folder / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


def dies_after(nth, folder):
    """Counts commits of transactions: taking over the id, and each step of COMMIT.md §9."""
    from clog.storage.commit.handle import Handle

    commit, times = Handle.commit, iter(range(1, 1 << 30))

    def dying(self, prepare, *, operation):
        done = commit(self, prepare, operation=operation)
        if next(times) == nth:
            die(folder)
        return done

    Handle.commit = dying


def write_two(target):
    """For ``foreachBatch``: the records are written to the home, their keys to another log."""

    from clog.connector import transact_batches

    def each_batch(df, t, _):
        t.write(df, target)
        t.write(df.selectExpr("key", "cast(key as string) as value"), f"{target}-keys")

    return transact_batches(target, each_batch, writerId="job")


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
    rows = spark.readStream.format("clog").option("startingOffsets", "earliest").load(source)
    writer = rows.select("key", "value").writeStream.trigger(availableNow=True)
    writer = writer.option("checkpointLocation", checkpoint)
    if mode in sinks:
        sink = sinks[mode]()
        spark.dataSource.register(sink)
        query = writer.format(sink.name()).start(target)
    else:
        dies_after(int(mode), Path(folder))
        query = writer.foreachBatch(write_two(target)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

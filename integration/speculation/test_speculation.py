"""A task that runs twice at the same time, on a cluster of two hosts: what it wrote is there once.

    pytest integration/speculation

Spark starts a second, speculative attempt of a slow task on another host only, so `local[…]` has
none. This starts a master and two workers of a standalone cluster, one on 127.0.0.1 and one on
127.0.0.2, which Linux takes for itself.
"""

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from clog.storage.log import Log

HOSTS = ("127.0.0.1", "127.0.0.2")
SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DRIVER = Path(__file__).parents[2] / "tests" / "spark" / "driver.py"
_spec = importlib.util.spec_from_file_location("spark_driver", DRIVER)
driver = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(driver)


def free_port():
    with socket.socket() as s:
        s.bind((HOSTS[0], 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    """A session on the cluster."""
    work = tmp_path_factory.mktemp("cluster")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1"}
    env.pop("SPARK_LOCAL_IP", None)
    port = free_port()
    master = f"spark://{HOSTS[0]}:{port}"
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", HOSTS[0], "--port", str(port)]]
    commands += [
        [f"{deploy}.worker.Worker", "--host", host, "-c", "1", "-m", "700m", "-d", work, master]
        for host in HOSTS
    ]
    running = []
    for i, command in enumerate(commands):
        with (work / f"log-{i}").open("wb") as log:
            full = [SPARK_CLASS, *command, "--webui-port", "0"]
            running.append(subprocess.Popen(full, env=env, stdout=log, stderr=log))
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.host": HOSTS[0],
        "spark.executor.memory": "512m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.cores.max": "2",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("FATAL")
    yield session
    session.stop()
    for process in reversed(running):
        process.terminate()
        process.wait()


def racing_sink(folder):
    """A sink whose task 0 has ended when a second attempt of it has written its rows, too."""
    from clog.connector import ClogDataSource
    from clog.connector.options import write_options
    from clog.connector.write.writers import ClogStreamWriter

    wait = driver.waited_for

    class Writer(ClogStreamWriter):
        def write(self, iterator):
            from pyspark import TaskContext

            written = super().write(iterator)
            task = TaskContext.get()
            if task.partitionId() == 0:
                (folder / f"attempt-{task.attemptNumber()}").touch()
                wait(folder / "attempt-1")
            return written

    class Source(ClogDataSource):
        @classmethod
        def name(cls):
            return "clog_racing"

        def streamWriter(self, schema, overwrite):  # noqa: N802
            return Writer(write_options(self.options), schema, overwrite=overwrite)

    return Source


def test_both_attempts_of_a_task_write_and_one_is_committed(spark, tmp_path):
    """Its rows are there once; the objects of the other are orphans, for the sweep."""
    source = Log.create(str(tmp_path / "orders"), partitions=2)
    for p in (0, 1):
        source.append([{"key": f"{p}-{i}", "value": f"{p}-{i}"} for i in range(20)], partition=p)
    spark.dataSource.register(racing_sink(tmp_path))
    query = (
        spark.readStream.format("clog").option("startingOffsets", "earliest")
        .option("minPartitions", 2).load(source.url)
        .select("key", "value").writeStream.format("clog_racing")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(str(tmp_path / "copy"))
    )  # fmt: skip
    query.awaitTermination()
    assert (tmp_path / "attempt-0").exists()
    copy = Log.open(str(tmp_path / "copy"))
    values = sorted(r["value"].decode() for b in copy.read() for r in b.to_pylist())
    assert values == sorted(f"{p}-{i}" for p in (0, 1) for i in range(20))
    assert len(list(copy.handle.store.list("data/"))) == 3

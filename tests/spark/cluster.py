"""A Spark cluster of two worker processes that cleans a log, while the task that is about to write
its second object ends its executor, JVM and all; in a process of its own, since a JVM has one
SparkContext.

    python cluster.py ROOT

ROOT/log is the log. Prints what was done, as JSON. What travels to Spark's workers is made in
functions, so that they get it by value.

No test of speculation: Spark runs no copy of a task on a host that runs the task, and these
workers are on one.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def deadly(root):
    """A store on the log whose put of a second object by one task ends the executor, once."""
    from clog.storage.store import open_store
    from clog.storage.store.contract import WrappingStore

    class Deadly(WrappingStore):
        def put(self, path, data):
            if "/data/" in path:
                self.puts = getattr(self, "puts", 0) + 1
                if self.puts == 2 and first(f"{root}/died"):
                    kill_executor()
            super().put(path, data)

    def first(path):
        try:
            Path(path).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return Deadly(open_store(f"{root}/log"))


def kill_executor():
    """Ends this worker's ancestors up to the executor's JVM: the daemon of workers, and it."""
    pid = os.getppid()
    for _ in range(5):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(pid, signal.SIGKILL)
        if name == "java":
            break
        pid = parent
    time.sleep(60)


def session():
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": "512m",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("FATAL")
    return made


def main():
    (root,) = sys.argv[1:]
    from clog.jobs import clean_with_spark
    from clog.storage import Log

    spark = session()
    log = Log.open(deadly(root))
    results = clean_with_spark(spark, log, force=True, tasks=2, task_bytes=2000)
    complete = sorted(r.partition for r in results if r.complete)
    print(json.dumps({"died": Path(f"{root}/died").exists(), "complete": complete}))
    spark.stop()


if __name__ == "__main__":
    main()

"""One host of a job: a process that follows as a standby until it is told to go, and then works
until it is killed, or somebody else has its id.

It knows nothing of those before it but what is in the logs and in its folder.
"""

import sys
import time
from multiprocessing.connection import Connection

from jobs import JOBS

from clog.storage import Log, StateFencedError, StateStore

STEP = 40
"""Records of a partition that one commit takes in."""
IDLE_S = 0.02
FENCED = 3


def work(store: StateStore, source: Log, output: Log, job: str) -> bool:
    """Takes in the next records, and commits the state, how far it is, and a record of the output
    for each of them; False where there are none.
    """
    start = store.next_offsets(source)
    ends = source.stable_offsets()
    end = {p: min(offset + STEP, ends[p]) for p, offset in start.items()}
    if end == start:
        return False
    done = []
    for p in start:
        for batch in source.read(partition=p, start=start[p], end=end[p]):
            for row in batch.to_pylist():
                JOBS[job](store, row["key"].decode(), row["value"].decode())
                done.append({"key": row["key"], "value": row["value"]})
    store.commit(positions={source: end}, outputs={output: done})
    return True


def main(job: str, url: str, folder: str, options: dict[str, object], told: Connection) -> None:
    """Follows until it is told to go; then works for ever."""
    source = Log.open(f"{url}/{job}-input", options)
    output = Log.open(f"{url}/{job}-output", options)
    state = f"{url}/{job}-state"
    with StateStore(state, folder, job, options, standby=True, reader=job) as store:
        told.send("ready")
        while not told.poll(IDLE_S):
            store.refresh()
        try:
            store.take_over()
            told.send("working")
            while True:
                if not work(store, source, output, job):
                    time.sleep(IDLE_S)
        except StateFencedError:
            sys.exit(FENCED)

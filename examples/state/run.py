"""Two hosts share each job; the one that works is killed again and again, its disk is deleted now
and then, and now and then it is not killed but replaced, and finds out by itself.

    python examples/state/run.py                       # 100 kills, on the local disk
    python examples/state/run.py --s3                  # on an S3 server of its own (moto)
    python examples/state/run.py --kills 4 --job words # a short one
"""

import argparse
import importlib.util
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import host as hosts
from jobs import JOBS, expected, records, words_in

from clog.storage import Log, StateStore

HERE = Path(__file__).parent
RECORDS = 600
"""That arrive before each kill."""
END_S = 600
PROCESSES = multiprocessing.get_context("forkserver")
"""Each process is forked from one that has loaded all modules and has done nothing else."""


@dataclass
class Host:
    """A host: its disk, and its process."""

    folder: Path
    process: ForkServerProcess | None = None
    told: Connection | None = None


@dataclass
class Done:
    """What happened."""

    kills: int = 0
    replaced: int = 0
    disks: int = 0
    differences: list[str] = field(default_factory=list)


def start(host: Host, job: str, url: str, options: dict[str, Any]) -> None:
    """Starts a host's process, as a standby."""
    host.told, other = PROCESSES.Pipe()
    arguments = job, url, str(host.folder), options, other
    host.process = PROCESSES.Process(target=hosts.main, args=arguments, daemon=True)
    host.process.start()
    other.close()


def go(host: Host) -> None:
    """Tells a standby to take over, and waits until it has."""
    assert host.told is not None
    for word, answer in (("", "ready"), ("go", "working")):
        if word:
            host.told.send(word)
        heard = host.told.recv() if host.told.poll(END_S) else None
        assert heard == answer, f"{host.folder.name} said {heard!r}, not {answer!r}"


def end(host: Host, *, kill: bool) -> None:
    """Ends a process: by SIGKILL, or as it finds out that another has its id."""
    assert host.process is not None
    assert host.told is not None
    if kill:
        host.process.kill()
    host.process.join(END_S)
    code = host.process.exitcode
    assert code == (-9 if kill else hosts.FENCED), f"{host.folder.name} ended with {code}"
    host.told.close()


def play(job: str, url: str, folder: Path, options: dict[str, Any], kills: int, seed: int) -> Done:
    """Kills the working host so often, and compares; then does so once more, at the end."""
    PROCESSES.set_forkserver_preload(["host"])
    chance, done, sent = random.Random(f"{seed} {job}"), Done(), 0
    source = Log.create(f"{url}/{job}-input", 3, storage_options=options)
    state = Log.create(f"{url}/{job}-state", 4, storage_options=options)
    Log.create(f"{url}/{job}-output", 2, storage_options=options)
    active, standby = Host(folder / f"{job}-host-1"), Host(folder / f"{job}-host-2")
    start(active, job, url, options)
    start(standby, job, url, options)
    go(active)
    while done.kills < kills:
        sent = send(source, job, sent)
        time.sleep(chance.random() * 0.6)
        kill = chance.random() < 0.85
        if kill:
            end(active, kill=True)
            done.kills += 1
        go(standby)
        if not kill:
            sent = send(source, job, sent)  # Who has nothing to commit does not find out.
            end(active, kill=False)
            done.replaced += 1
        if chance.random() < 0.3:
            shutil.rmtree(active.folder, ignore_errors=True)
            done.disks += 1
        active, standby = standby, active
        start(standby, job, url, options)
    finish(source, state, job)
    for host in (active, standby):
        end(host, kill=True)
    with StateStore(f"{url}/{job}-state", folder / f"{job}-last", job, options):
        pass  # Who takes the id up ends what the last kill left undecided in the output.
    done.differences = differences(job, url, folder, options, sent)
    return done


def send(source: Log, job: str, sent: int) -> int:
    """Appends the next records; returns how many there are now."""
    source.append(records(job, sent, RECORDS))
    return sent + RECORDS


def finish(source: Log, state: Log, job: str) -> None:
    """Waits until the host that works has taken in all there is."""
    ends, reached, until = source.end_offsets(), None, time.monotonic() + END_S
    while (now := state.positions(job).get(source.id)) != ends:
        if now != reached:
            reached, until = now, time.monotonic() + END_S
        if time.monotonic() > until:
            raise TimeoutError(f"{job} stood at {now} of {ends} for {END_S} s")
        time.sleep(0.05)


def differences(job: str, url: str, folder: Path, options: dict[str, Any], sent: int) -> list[str]:
    """Returns what differs from the state after all records in one go: in the log, on the disks of
    both hosts, and on a disk that is empty; and records that are not in the output as often as in
    the input.
    """
    rows = records(job, 0, sent)
    right = expected(job, rows)
    if job == "words":
        counted = {f"word/{w}".encode(): str(n).encode() for w, n in words_in(rows).items()}
        assert counted == right
    log = Log.open(f"{url}/{job}-state", options)
    table = {row["key"]: row["value"] for row in log.table().to_arrow().to_pylist()}
    found = {"the log": table}
    for name in (f"{job}-host-1", f"{job}-host-2", "new"):
        with StateStore(f"{url}/{job}-state", folder / name, job, options, standby=True) as store:
            found[name] = dict(store.scan())
    taken = Counter((row["key"].encode(), row["value"].encode()) for row in rows)
    put = Counter(
        (row["key"], row["value"])
        for batch in Log.open(f"{url}/{job}-output", options).read(columns=["key", "value"])
        for row in batch.to_pylist()
    )
    return [
        f"the output: {row!r} is there {put[row]} times, not {taken[row]}"
        for row in sorted({*taken, *put})
        if put[row] != taken[row]
    ] + [
        f"{where}: {key!r} is {there.get(key)!r}, not {right.get(key)!r}"
        for where, there in found.items()
        for key in sorted({*right, *there})
        if there.get(key) != right.get(key)
    ]


@contextmanager
def place(folder: Path, *, s3: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields where the logs are, and the options of the store."""
    if not s3:
        yield str(folder / "logs"), {}
        return
    path = HERE.parents[1] / "integration" / "kill" / "s3_server.py"
    spec = importlib.util.spec_from_file_location("s3_server", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.s3_server(folder) as found:
        yield found


def main(arguments: list[str]) -> list[Done]:
    """Plays the jobs, and returns what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each job")
    parser.add_argument("--job", choices=sorted(JOBS), action="append")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(arguments)
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        with place(folder, s3=given.s3) as (url, options):
            for job in given.job or sorted(JOBS):
                began = time.monotonic()
                done = play(job, url, folder, options, given.kills, given.seed)
                counted = (
                    f"{done.kills} kills, {done.replaced} replaced, {done.disks} disks deleted"
                )
                took = f"{time.monotonic() - began:.0f} s"
                print(
                    f"{job}: {counted}, {len(done.differences)} differences, in {took}", flush=True
                )
                print(*done.differences[:10], sep="\n", end="\n" if done.differences else "")
                results.append(done)
    return results


if __name__ == "__main__":
    sys.exit(any(done.differences for done in main(sys.argv[1:])))

"""Small histories of real processes, judged by checkers that know nothing of clog.

    python integration/outside/run.py --histories 100 [--s3 [moto|versitygw]] [--seed S]
    python integration/outside/run.py --planted "reads are old" --histories 20

See README.md in this folder. Exit code 1 if a history is not what is promised; with ``--planted``
if none is found out.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "kill"), str(HERE.parent / "stores")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[1:])  # Of the process that clients fork from.

import isolation  # noqa: E402
from clients import (  # noqa: E402
    HOME,
    KEYS,
    OTHERS,
    PARTITIONS,
    SHARED,
    Client,
    Place,
    Recreator,
    live,
    rows_of,
)
from history import operations  # noqa: E402
from planted import BUGS, OF_TRANSACTIONS  # noqa: E402

from clog.storage import Log  # noqa: E402

PROCESSES = multiprocessing.get_context("forkserver")
JUDGE = HERE / "judge"
CLIENTS = (4, 8)
"""As many clients has a history, at least and at most."""
KILLS = (0, 8)
LIVES_S = (0.05, 1.0)
"""A victim dies so long after the last one."""
ENDS_WITHIN_S = 300
FINAL = "z-final"
"""The client that looks once more when nobody works any more."""


@dataclass(frozen=True, slots=True)
class Made:
    """A history, and what it consists of.

    Attributes:
        kind: ``log``, ``recreated`` or ``transactions``.
        path: its operations as JSON, for the judge; None of transactions, which are judged here.
        problems: what was found so far.
    """

    kind: str
    path: Path | None
    problems: list[str]
    counts: Counter[str]


class NoGoError(Exception):
    """The judge cannot be built here; the message says why."""


def build_judge(folder: Path) -> Path:
    """Builds the program that judges a log's history.

    Raises:
        NoGoError: there is no Go, or what it needs cannot be had.
    """
    places = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/go/bin"))
    go = shutil.which("go", path=places)
    if go is None:
        raise NoGoError("go is not installed")
    target = folder / "judge"
    done = subprocess.run(
        [go, "build", "-o", str(target), "."],
        cwd=JUDGE,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NoGoError(f"go build failed: {done.stderr[-500:]}")
    return target


def judged(judge: Path, paths: list[Path]) -> dict[Path, str]:
    """Returns the verdict on each history: ``ok``, or in words what is wrong."""
    if not paths:
        return {}
    done = subprocess.run(
        [str(judge), *map(str, paths)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        Path(line["file"]): line["verdict"] + "".join(f" at {o}" for o in line.get("objects", ()))
        for line in lines
    }


def make(kind: str, place: Place, drawn: random.Random) -> Made:
    """Makes a history: creates the logs, lets processes work and die, looks at what is left."""
    place.work.mkdir(parents=True)
    if kind == "transactions":
        for name in (HOME, *OTHERS):
            url = f"{place.url}/{name}"
            Log.create(url, 1, {"cleanup.policy": ""}, place.options)
        names = {f"w{i}": "worker" for i in range(drawn.randint(*CLIENTS))}
    else:
        Recreator(place, "a-first", drawn.randrange(1 << 32)).create_at_last()
        names = {f"c{i}": "client" for i in range(drawn.randint(*CLIENTS))}
        if drawn.random() < 0.5:
            names["cleaner"] = "cleaner"
        if kind == "recreated":
            names["r"] = "recreator"
    counts = Counter({"kills": play(place, names, drawn)})
    said = [p.read_text(errors="replace") for p in place.work.glob("*.out")]
    problems = [f"a client failed: {text[-1500:]}" for text in said if "Traceback" in text]
    if kind == "transactions":
        return _looked_at(place, problems, counts)
    Client(place, FINAL, 0).look_at_all()
    ops = operations(place.work.glob("*.jsonl"))
    counts.update(f"{op['op']} {op['outcome']}" for op in ops)
    path = place.work / "history.json"
    path.write_text(json.dumps(ops))
    return Made(kind, path, problems, counts)


def play(place: Place, names: dict[str, str], drawn: random.Random) -> int:
    """Runs the clients until each has done its operations in one life; returns the kills."""

    def start(name: str) -> Any:
        given = (names[name], place, name, drawn.randrange(1 << 32))
        process = PROCESSES.Process(target=live, args=given)
        process.start()
        return process

    running = {name: start(name) for name in names}
    kills, most = 0, drawn.randint(*KILLS)
    deadline = time.monotonic() + ENDS_WITHIN_S
    next_kill = time.monotonic() + drawn.uniform(*LIVES_S)
    try:
        while any(process.is_alive() for process in running.values()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"clients in {place.work} did not end")
            victims = [name for name, process in running.items() if process.is_alive()]
            if victims and kills < most and time.monotonic() > next_kill:
                name = drawn.choice(victims)
                running[name].kill()
                running[name].join()
                running[name] = start(name)
                kills += 1
                next_kill = time.monotonic() + drawn.uniform(*LIVES_S)
            time.sleep(0.01)
    finally:
        for process in running.values():
            process.kill()
            process.join()
    return kills


def _looked_at(place: Place, problems: list[str], counts: Counter[str]) -> Made:
    """Ends what is left of transactions, and judges all that was noted of them."""
    logs = {n: Log.open(f"{place.url}/{n}", place.options) for n in (HOME, *OTHERS)}
    ops = operations(place.work.glob("*.jsonl"), failed=True)
    ids = {op["input"]["id"] for op in ops if op["op"] == "transaction"} | {SHARED}
    for id_ in sorted(ids):
        logs[HOME].transaction(id_).abort()  # Its next holder finishes what the last one left.
    problems += [
        f"{log.url} is undecided from {log.stable_offsets()}"
        for log in logs.values()
        if log.stable_offsets() != log.end_offsets()
    ]
    final = {name: rows_of(log) for name, log in logs.items()}
    counts.update(f"{op['op']} {op['outcome']}" for op in ops)
    counts["crossings"] += len(isolation.crossings(final))
    return Made("transactions", None, problems + isolation.anomalies(ops, final), counts)


@contextmanager
def somewhere(work: Path, s3: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """An empty place: a folder, or a bucket of a real server behind a hostile network."""
    if s3 is None:
        yield str(work / "logs"), {}
        return
    import servers

    from s3_server import s3_server

    with s3_server(work, s3) as (url, options):
        there = options["client_kwargs"]["endpoint_url"]
        port = servers.free_port()
        command = [sys.executable, str(HERE.parent / "kill" / "hostile_proxy.py"), str(port)]
        rates = ["--delay-ms", "2", "--cut", "0.02", "--repeat", "0.02"]
        with (work / "network.out").open("wb") as out:
            network = subprocess.Popen([*command, there.rpartition(":")[2], *rates], stdout=out)
        try:
            servers.wait_for_port(port, network.poll)
            address = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
            yield url, {**options, "client_kwargs": address}
        finally:
            network.terminate()
            network.wait()


def partitions_of_keys() -> dict[str, int]:
    """Returns where the hash of each key puts it."""
    log = Log.create("memory://outside/keys", PARTITIONS, exist_ok=True)
    log.append([{"key": key, "value": "1"} for key in KEYS])
    return {bytes(r["key"]).decode(): r["partition"] for r in log.read().to_pylist()}


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--histories", type=int, default=100)
    ask.add_argument("--only", choices=("log", "recreated", "transactions"))
    ask.add_argument("--s3", nargs="?", const="moto", choices=("moto", "versitygw", "minio"))
    ask.add_argument("--seed", type=int, default=0, help="of what is drawn; processes stay racy")
    ask.add_argument("--planted", choices=tuple(BUGS), help="a bug in every client")
    ask.add_argument("--work", help="keep everything in this folder (default: a temporary one)")
    given = ask.parse_args()
    work = Path(given.work or tempfile.mkdtemp(prefix="clog-outside-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    try:
        judge = build_judge(work)
    except NoGoError as e:
        print(f"skipped: the judge cannot be built: {e}")
        return 2
    PROCESSES.set_forkserver_preload(["clients", "s3fs", "pyarrow.parquet", "pandas"])
    with ExitStack() as stack:
        url, options = stack.enter_context(somewhere(work, given.s3))
        made = list(histories(given, work, url, options))
    verdicts = judged(judge, [m.path for m in made if m.path is not None])
    return report(given, work, made, verdicts)


def histories(
    given: argparse.Namespace, work: Path, url: str, options: dict[str, Any]
) -> Iterator[Made]:
    kinds = ("log", "recreated", "log", "transactions")
    if given.planted:
        kinds = ("transactions",) if given.planted in OF_TRANSACTIONS else ("log",)
    partitions = partitions_of_keys()
    for i in range(given.histories):
        drawn = random.Random(given.seed + i)
        place = Place(
            f"{url}/h{i}",
            options,
            work / f"h{i}",
            partitions,
            bug=given.planted or "",
        )
        began = time.monotonic()
        made = make(given.only or kinds[i % len(kinds)], place, drawn)
        made.counts["seconds"] = round(time.monotonic() - began)
        for problem in made.problems:
            print(f"h{i} ({made.kind}, seed {given.seed + i}): {problem}", flush=True)
        yield made


def report(
    given: argparse.Namespace, work: Path, made: list[Made], verdicts: dict[Path, str]
) -> int:
    """Prints the figures; returns the exit code."""
    bad = sum(bool(m.problems) for m in made)
    for path, verdict in verdicts.items():
        if verdict != "ok":
            bad += 1
            print(f"{path.parent.name}: not linearizable: {verdict}; see {path}")
    total: Counter[str] = Counter()
    for m in made:
        total.update(m.counts)
    by_kind = Counter(m.kind for m in made)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(by_kind.items())))
    print(", ".join(f"{what}: {n}" for what, n in sorted(total.items())))
    print(f"{len(made)} histories, {bad} not as promised")
    if not given.work and (given.planted or not bad):
        shutil.rmtree(work)
    return int(bad == 0 if given.planted else bad > 0)


if __name__ == "__main__":
    sys.exit(main())

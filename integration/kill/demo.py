"""The demo on a real store, killed on the way: it must end with equal tables all the same.

    python integration/kill/demo.py --store local
    python integration/kill/demo.py --store s3 --kills 3
    python integration/kill/demo.py --store azure --until 2013-04-01

Starts the store's server, then `examples/flights/run.py`, unchanged but for its URL. Each kill
waits for a share of the micro-batches left that is drawn anew, and a moment more; then SIGKILL
goes to everything, to Spark's JVM alone, or to the cleaner alone, in turn. What was killed is
started again; the last run goes on to the end. One more run must append nothing. See README.md.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import HERE, Child

from s3_server import BUCKET, s3_server

VICTIMS = ("everything", "the JVM", "the cleaner")
POLL_S = 0.1
RUN_S = 3600
STARTS_MAX = 6
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives Python ten seconds to start; on a busy machine that is one more way to die."""


def main() -> int:
    args = _arguments()
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="clog-demo-") as scratch:
        work = Path(args.work or scratch)
        work.mkdir(parents=True, exist_ok=True)
        print(f"seed {args.seed}; store {args.store}; work in {work}", flush=True)
        with STORES[args.store](work) as (url, environment):
            demo = _Demo(work, ["--url", url, "--until", args.until], environment)
            for n in range(args.kills):
                share = draw.uniform(0.2, 1) / (args.kills - n + 1)
                _kill_once(demo, VICTIMS[n % len(VICTIMS)], share, draw.random() * 2)
            print(demo.run_to_the_end(), flush=True)
            last_words = demo.run_to_the_end()
    if "appended 0 records" not in last_words:
        print("the last run appended records: nothing should have been left", file=sys.stderr)
        return 1
    print(f"EQUAL after {args.kills} kills")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--store", choices=sorted(STORES), default="local")
    parser.add_argument("--kills", type=int, default=3, help="default: 3")
    parser.add_argument("--until", default="2013-04-01", help="as the demo's (default: 2013-04-01)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--work", help="keep everything in this folder (default: a temporary one)")
    return parser.parse_args()


class _Demo:
    """The demo's process, started as often as it takes."""

    def __init__(self, work: Path, arguments: list[str], environment: dict[str, str]) -> None:
        self.work = work
        self.arguments = [*arguments, "--work", str(work / "flights-run")]
        self.environment = environment

    def start(self) -> Child:
        # Relative to the folder of the programs that are killed there.
        program = "../../examples/flights/run"
        (self.work / "demo.out").unlink(missing_ok=True)
        return Child.start(
            program, self.arguments, work=self.work, name="demo", environment=self.environment
        )

    def batches(self) -> int:
        """Micro-batches that Spark has noted as done."""
        folder = self.work / "flights-run/checkpoints/flights/commits"
        return sum(p.name.isdigit() for p in folder.glob("*"))

    def files(self) -> int:
        """Files that the stream reads, one a micro-batch; none before the demo wrote them."""
        return len(list((self.work / "flights-run/legs").glob("*.parquet")))

    def run_to_the_end(self) -> str:
        """What it printed at the end; the tables were equal, else it raises."""
        for _ in range(STARTS_MAX):
            child = self.start()
            code = child.wait(RUN_S)
            if code == 0:
                return child.last_words()
            child.kill()
            self.check_death(child)
        raise SystemExit(f"the demo did not start in {STARTS_MAX} attempts")

    def check_death(self, child: Child) -> None:
        """Raises when it died of anything but slowness."""
        if TOO_SLOW not in child.last_words():
            raise SystemExit(f"the demo ended by itself: {child.last_words()}")
        print(f"died by itself: {TOO_SLOW}", flush=True)
        child.end_session()


def _kill_once(demo: _Demo, victim: str, share: float, delay_s: float) -> None:
    """Runs the demo until this share of what is left is done, and a moment more, and kills."""
    child, before = demo.start(), demo.batches()
    while demo.batches() - before < max(1, share * (demo.files() - before)):
        if not child.is_running:
            demo.check_death(child)
            child = demo.start()
        time.sleep(POLL_S)
    time.sleep(delay_s)
    print(f"kills {victim} after {demo.batches()} micro-batches", flush=True)
    if victim == "everything":
        child.kill()
    else:
        child.kill(*_pids_of(child, "java" if victim == "the JVM" else "cleaner"))
    if victim == "the cleaner":
        time.sleep(3)  # the stream goes on without
        child.kill()
    child.process.wait()
    child.end_session()


def _pids_of(child: Child, word: str) -> list[int]:
    """Processes of the child's session whose command line has the word as its program or command
    (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
        except (OSError, ValueError):
            continue
        if session == child.process.pid and any(Path(w).name == word for w in words[:3]):
            found.append(int(entry.name))
    if not found:
        raise SystemExit(f"no process of the demo is {word}")
    return found


@contextmanager
def _local(work: Path) -> Iterator[tuple[str, dict[str, str]]]:
    yield str(work / "log"), {}


@contextmanager
def _s3(work: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server(work) as (_, options):
        client = options["client_kwargs"]
        environment = {
            "AWS_ENDPOINT_URL": client["endpoint_url"],
            "AWS_DEFAULT_REGION": client["region_name"],
            "AWS_ACCESS_KEY_ID": options["key"],
            "AWS_SECRET_ACCESS_KEY": options["secret"],
        }
        yield f"s3://{BUCKET}/flights", environment


@contextmanager
def _azure(_: Path) -> Iterator[tuple[str, dict[str, str]]]:
    sys.path.append(str(HERE.parent / "stores"))
    import conftest as stores
    import servers

    with servers.azurite() as endpoint:
        options = stores.azurite_options(endpoint)
        url, _ = stores.azure_root(options)
        yield url, {"AZURE_STORAGE_CONNECTION_STRING": options["connection_string"]}


STORES = {"local": _local, "s3": _s3, "azure": _azure}


if __name__ == "__main__":
    sys.exit(main())

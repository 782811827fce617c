"""Measures memory and extra disk of a pass, in a process that does nothing else (Linux).

    python benchmarks/parts/cleaning_memory.py --records 20000000 --keys 4500000
    python benchmarks/parts/cleaning_memory.py --records 40000000 --keys 4030000

The log is that of `cleaning.py`, half of it dirty; both lines above have 4 million distinct dirty
keys, which fill 0.72 of the default buffer of 128 MiB. The limit is the buffer + 400 MiB, and the
peak must not grow with the log.

*In flight*: the most bytes of objects that were written and not committed yet: what one merged
group takes, and what a killed pass leaves. *Waiting*: bytes of the objects that the pass replaced,
until ``file.delete.delay.ms`` is over.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cleaning import fill

from clog.cleaner import Cleaner
from clog.cleaner.passes.offset_map import save_memory
from clog.storage import Log
from clog.storage.format import documents
from clog.storage.store import open_store
from clog.storage.store.contract import Store, WrappingStore

MIB = 1 << 20
BUFFER_BYTES = 128 * MIB
LIMIT_BYTES = BUFFER_BYTES + 400 * MIB


class InFlight(WrappingStore):
    """Passes everything on; knows how much was written and is not committed yet, at most."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.size_bytes = self.most_bytes = 0

    def put(self, path: str, data: bytes | memoryview) -> None:
        self.inner.put(path, data)
        if path.startswith(documents.DATA):
            self.size_bytes += len(data)
            self.most_bytes = max(self.most_bytes, self.size_bytes)

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)
        self.size_bytes = 0


def clean(url: str) -> dict[str, float]:
    """The pass, and what it took; for a process of its own."""
    save_memory()  # As the command line does.
    store = InFlight(open_store(url))
    log = Log.open(store)
    log.handle.manifest()
    before = resident("VmRSS")
    (result,) = Cleaner(log, dedupe_buffer_bytes=BUFFER_BYTES).run_once(force=True)
    stats = result.stats
    released = log.handle.manifest().released
    return {
        "records": stats.records_read,
        "distinct dirty keys": stats.map_entries,
        "maps": stats.maps,
        "resident before, MiB": before / MIB,
        "peak resident, MiB": resident("VmHWM") / MIB,
        "limit, MiB": LIMIT_BYTES / MIB,
        "record MiB before": stats.size_bytes_before / MIB,
        "record MiB after": stats.size_bytes_after / MIB,
        "written MiB": stats.bytes_written / MIB,
        "in flight at most, MiB": store.most_bytes / MIB,
        "waiting for the delay, MiB": sum(r.size_bytes for r in released) / MIB,
    }


def resident(name: str) -> int:
    """Bytes, as the kernel counts them for this process alone."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=225_000)
    parser.add_argument("--value-bytes", type=int, default=72)
    parser.add_argument("--segment-bytes", type=int, default=64 << 20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="a log that is there already; it is changed")
    parser.add_argument("--clean", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.clean:
        print(json.dumps(clean(args.clean)))
        return
    folder = Path(tempfile.mkdtemp(prefix="clog-cleaning-"))
    try:
        if args.log is None:
            fill(folder / "log", args)
        url = args.log or str(folder / "log")
        found = subprocess.run(
            [sys.executable, __file__, "--clean", url], check=True, capture_output=True, text=True
        )
        for name, value in json.loads(found.stdout).items():
            print(f"{name:32}{value:16,.1f}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()

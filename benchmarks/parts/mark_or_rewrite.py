"""What is cheaper where a share of a clean log's keys is updated: to mark dead rows or to rewrite?

    python benchmarks/parts/mark_or_rewrite.py --records 300000 --value-bytes 70
    python benchmarks/parts/mark_or_rewrite.py --records 60000 --value-bytes 1000 --passes 3

CPU seconds of the process, of passes with updates before each, ten reads of the table after each,
and the purge at the end of ``dead.rows.delay.ms``, by a clock that is set. Updates are of keys at
random, and of runs of 1,000 neighbours. `chosen` is what the policy does by itself. Logs are in
memory, and runs alternate.
"""

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa

from clog.cleaner import Cleaner
from clog.cleaner.passes import rewriter
from clog.storage import Log, ManualClock
from clog.storage.env import SeededIds
from clog_testing.crash import discard, memory_store

READS = 10
SHARES = (0.01, 0.05, 0.1, 0.3)
RUN = 1000
DAY_MS = 86_400_000
MODES = ("marked", "rewritten", "chosen")


def rows(ids: np.ndarray, value_bytes: int, rng: np.random.Generator) -> pa.Table:
    """Records of these keys; half of a value is random."""
    half = value_bytes // 2
    noise = rng.bytes(len(ids) * half)
    values = [noise[i * half : (i + 1) * half] + b"v" * half for i in range(len(ids))]
    keys = pa.array([b"%016d" % i for i in ids], pa.binary())
    return pa.table({"key": keys, "value": pa.array(values, pa.binary())})


def updated(records: int, share: float, rng: np.random.Generator, *, local: bool) -> np.ndarray:
    count = int(records * share)
    if not local:
        return rng.choice(records, count, replace=False)
    runs = rng.choice(records // RUN, max(1, count // RUN), replace=False)
    return np.concatenate([np.arange(r * RUN, (r + 1) * RUN) for r in runs])


def measured(mode: str, share: float, args: argparse.Namespace, *, local: bool) -> float:
    store, clock = memory_store(), ManualClock(1_700_000_000_000)
    config = {"segment.bytes": 32 << 20, "object.bytes": 16 << 20, "min.cleanable.dirty.ratio": 0}
    log = Log.create(store, partitions=1, config=config, clock=clock, ids=SeededIds(1))
    rng = np.random.default_rng(1)
    log.append(rows(np.arange(args.records), args.value_bytes, rng), partition=0)
    log.roll()
    cleaner = Cleaner(log)
    cleaner.run_once(force=True)
    policy = rewriter.RewritePolicy
    real = policy.is_little
    if mode != "chosen":
        policy.is_little = lambda self, c: mode == "marked" and self.may_mark_in(c.chunk)
    taken = 0.0
    for _ in range(args.passes):
        ids = updated(args.records, share, rng, local=local)
        log.append(rows(ids, args.value_bytes, rng), partition=0)
        log.roll()
        begun = time.process_time()
        cleaner.run_once(force=True)
        for _ in range(READS):
            log.table().to_arrow()
        taken += time.process_time() - begun
        clock.advance(7 * DAY_MS // args.passes)
    begun = time.process_time()
    cleaner.run_once()
    taken += time.process_time() - begun
    policy.is_little = real
    discard(store)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--value-bytes", type=int, default=70)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    print(f"{'updated':>8} {'where':>6}", *(f"{mode:>10}" for mode in MODES))
    for local in (False, True):
        for share in SHARES:
            taken: dict[str, list[float]] = {mode: [] for mode in MODES}
            for _ in range(args.runs):
                for mode, seconds in taken.items():
                    seconds.append(measured(mode, share, args, local=local))
            medians = [f"{statistics.median(seconds):>10.2f}" for seconds in taken.values()]
            print(f"{share:>8.0%} {'local' if local else 'spread':>6}", *medians, flush=True)


if __name__ == "__main__":
    main()

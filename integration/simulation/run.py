"""Simulates worlds by seed; see README.md in this folder.

python integration/simulation/run.py --seed 7 [--trace]           # one, as it was
python integration/simulation/run.py --seeds 1000 [--first 0]     # many
python integration/simulation/run.py --seeds 100000 --state FILE  # many, in several sittings
python integration/simulation/run.py --seeds 100000 --only transactions  # those with several logs
python integration/simulation/run.py --planted [NAME] --seeds 2000
python integration/simulation/run.py --seeds 200 --requests FOLDER  # one file of calls for each
"""

import argparse
import hashlib
import logging
import multiprocessing
import sys
from contextlib import nullcontext
from pathlib import Path

from batches import KINDS, Tally, command, find, run_chunk, run_one
from marks import missing, table
from planted import BUGS, planted
from world import World

CHUNK = 50


def main() -> int:
    args = _arguments()
    logging.disable(logging.CRITICAL)  # A pass that fails says so; the oracle hears of it.
    if args.seed is not None:
        with planted(args.planted[0]) if args.planted else nullcontext():
            return _replay(args.seed, trace=args.trace)
    if args.planted is not None:
        names = args.planted or list(BUGS)
        return _planted(names, first=args.first, seeds=args.seeds or 2000, enough=args.enough)
    if args.requests:
        return _requests(range(args.first, args.first + (args.seeds or 200)), Path(args.requests))
    state = Path(args.state) if args.state else None
    tally = Tally.load(state, first=args.first)
    todo = range(tally.next, args.first + (args.seeds or 1000), CHUNK)
    chunks = [(first, min(first + CHUNK, todo.stop), args.only) for first in todo]
    with multiprocessing.get_context("spawn").Pool(args.processes, logging.disable, (50,)) as pool:
        for result in pool.imap(run_chunk, chunks):
            tally.add(result)
            if state is not None:
                tally.save(state)
            for seed, message in result.failures:
                print(f"{command(seed)}\n    {message}", flush=True)
    print(tally.report())
    print(table(tally.marks))
    short = missing(tally.marks)
    print(f"{len(short)} marks too seldom: {'; '.join(short[:5])}" if short else "all marks hit")
    return 1 if tally.failures else 0


def _replay(seed: int, *, trace: bool) -> int:
    world, failure = run_one(seed)
    if trace:
        print("\n".join(world.trace))
    if failure is not None:
        print(f"{command(seed)}\n    {failure}")
        return 1
    standing = [site.logs.standing for site in world.sites]
    newest = [None if oracle is None else oracle.newest for oracle in standing]
    print(f"seed {seed}: {len(world.trace)} calls, versions {newest}, {world.digest}")
    return 0


def _requests(seeds: range, folder: Path) -> int:
    """Writes what each seed asks of the store, and what stands there at its end: two checkouts
    whose folders are the same ask for the same. Nobody is interrupted, as that is at a line.
    """
    World.has_interrupts = False
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    for seed in seeds:
        world, failure = run_one(seed)
        lines = [*world.trace, f"ends: {failure or 'well'}"]
        for site in world.sites:
            for path, (data, written_ms) in sorted(site.disk.objects.items()):
                digest = hashlib.sha256(data).hexdigest()[:16]
                lines.append(f"{site.number} {path} {len(data)} bytes {digest} at {written_ms}")
        (folder / f"{seed:06}").write_text("\n".join([*lines, ""]))
        failed += failure is not None
    print(f"{len(seeds)} seeds, {failed} failed")
    return 1 if failed else 0


def _planted(names: list[str], *, first: int, seeds: int, enough: int) -> int:
    """Plants each bug, and runs seeds until enough of them find it."""
    print(f"{'bug':46}{'seeds':>6}{'found by':>9}  the first")
    missed = 0
    for name in names:
        found, ran, message = find(name, first=first, seeds=seeds, enough=enough)
        missed += not found
        shown = f"{found[0]}: {message}" if found else "NOT FOUND"
        print(f"{name:46}{ran:>6}{len(found):>9}  {shown[:110]}", flush=True)
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition(";")[0])
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--trace", action="store_true", help="print its calls")
    parser.add_argument("--seeds", type=int, help="run so many (1000)")
    parser.add_argument("--first", type=int, default=0, help="from this one on")
    parser.add_argument("--only", choices=KINDS, help="only worlds that are made for this")
    parser.add_argument("--requests", metavar="FOLDER", help="write each seed's calls there")
    parser.add_argument("--state", help="a file that remembers what is done")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--planted", nargs="*", metavar="NAME", help="plant these bugs, or all")
    parser.add_argument("--enough", type=int, default=3, help="seeds that must find a planted bug")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Worlds of everything; see README.md in this folder.

python integration/world/run.py --seed 7            # one, step by step
python integration/world/run.py --seeds 200         # many; what fails says how to see it again
python integration/world/run.py --seeds 200 --pairs # with the table of pairs
"""

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import jobs
import lives
import upkeep
from operations import OPERATIONS
from questions import ask
from world import World, virtual_time

STEPS = 80
NEAR = 10
ROWS_IN = (jobs, lives, upkeep)
"""Modules that add rows to `OPERATIONS`."""


def run_one(seed: int, steps: int = STEPS) -> tuple[World, str | None]:
    """Lives through one world; returns it, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder))
        with virtual_time(world.clock):
            try:
                for _ in range(steps):
                    _step(world)
                    ask(world, 2)
                    if world.random.random() < 0.5:
                        world.later(world.random.randrange(20_000))
            except Exception as e:  # noqa: BLE001 - each is a finding
                place = traceback.extract_tb(e.__traceback__)[-1]
                where = f"{Path(place.filename).name}:{place.lineno}"
                return world, f"{type(e).__name__}: {e} ({where})"
            finally:
                world.end()
    return world, None


def _step(world: World) -> None:
    may = [one for one in OPERATIONS.values() if one.may(world)]
    is_even = world.seed % 4 == 0  # There the rare ones meet.
    weights = [1 if is_even else one.weight for one in may]
    while True:
        chosen = world.random.choices(may, weights)[0]
        world.trace.append(f"{len(world.trace):3} {chosen.name}")
        world.failed = False
        done = chosen.run(world)
        world.observe(done=done is not False)
        if done is not False:
            world.done.append(chosen.name)
            return


def pairs_of(done: list[str]) -> Counter[tuple[str, str]]:
    """Counts which operations came within ten steps of each other, in this order."""
    found: Counter[tuple[str, str]] = Counter()
    for i, first in enumerate(done):
        for second in done[i + 1 : i + 1 + NEAR]:
            found[first, second] += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    pairs: Counter[tuple[str, str]] = Counter()
    failures = 0
    began = time.process_time()
    for seed in seeds:
        world, wrong = run_one(seed, args.steps)
        if wrong is None:
            pairs += pairs_of(world.done)
        else:
            failures += 1
            print(f"python integration/world/run.py --seed {seed}\n    {wrong}", flush=True)
        if args.seed is not None:
            print("\n".join(world.trace))
    names = sorted(OPERATIONS)
    few = sorted((pairs[a, b], a, b) for a in names for b in names)
    seconds = time.process_time() - began
    print(f"{len(seeds)} worlds, {failures} failed, {seconds:.0f} CPU s; rarest pairs: {few[:8]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

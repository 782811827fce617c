"""Worlds of everything; see README.md in this folder.

python integration/world/run.py --seed 7            # one, step by step
python integration/world/run.py --seeds 200         # many; what fails says how to see it again
python integration/world/run.py --seeds 2000 --pairs 20 # until each pair met so often
"""

import argparse
import logging
import math
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random

import jobs
import upkeep
from lives import CONFIGS, OF_CREATION, OF_ORDER
from operations import OPERATIONS, Operation
from planted import PLANTED, planted
from questions import QUESTIONS, ask
from world import World, virtual_time

STEPS = 80
NEAR = 10
ROWS_IN = (jobs, upkeep)
"""Modules that add rows to `OPERATIONS`."""
APART: frozenset[tuple[str, str]] = frozenset()
"""Pairs of which the second cannot come within ten steps after the first."""


def run_one(seed: int, steps: int = STEPS) -> tuple[World, str | None]:
    """Lives through one world; returns it, and what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(seed, Path(folder))
        with virtual_time(world.clock):
            try:
                liked = likings(seed)
                for _ in range(steps):
                    _step(world, liked)
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


SMALL = 10
"""Operations of a small world."""


def likings(seed: int) -> dict[str, float]:
    """Returns how often a world does which operation. In every second world all come equally often
    (`_next`); half of the others are small, with ten operations that meet again and again; the rest
    like about a quarter of all.
    """
    random = Random(f"likings of {seed}")
    if seed % 4 == 3:
        few = {"create", *random.sample(sorted(OPERATIONS), SMALL)}
        return {name: one.weight * (name in few) for name, one in OPERATIONS.items()}
    return {name: one.weight * random.choice((0.1, 0.3, 1, 6)) for name, one in OPERATIONS.items()}


def liking(names: Sequence[str], seeds: Iterable[int]) -> list[int]:
    """Returns the seeds, first those whose worlds do these operations most often."""

    def share(seed: int) -> float:
        liked = likings(seed)
        return (
            -(seed % 2)
            * math.prod(liked[name] for name in names)
            / sum(liked.values()) ** len(names)
        )

    return sorted(seeds, key=share)


def _step(world: World, liked: dict[str, float]) -> None:
    while True:
        chosen = _next(world, [one for one in OPERATIONS.values() if one.may(world)], liked)
        world.tried[chosen.name] += 1
        world.trace.append(f"{len(world.trace):3} {chosen.name}")
        world.failed = False
        done = chosen.run(world)
        world.observe(done=done is not False)
        if done is not False:
            world.done.append(chosen.name)
            return


def _next(world: World, may: list[Operation], liked: dict[str, float]) -> Operation:
    weights = [liked[one.name] for one in may]
    if world.seed % 2 and world.random.random() < 0.97 and any(weights):
        return world.random.choices(may, weights)[0]
    least = min(world.tried[one.name] for one in may)  # So the rare ones meet, too.
    return world.random.choice([one for one in may if world.tried[one.name] <= least + 1])


def pairs_of(done: list[str]) -> Counter[tuple[str, str]]:
    """Counts which operations came within ten steps of each other, in this order."""
    found: Counter[tuple[str, str]] = Counter()
    for i, first in enumerate(done):
        for second in done[i + 1 : i + 1 + NEAR]:
            found[first, second] += 1
    return found


def table_of(counts: Counter[tuple[str, str]]) -> str:
    """Returns the pairs as a table: rows come first, columns, by number, within ten steps after."""
    names = sorted(OPERATIONS)
    lines = [" " * 32 + "".join(f"{j:5}" for j in range(len(names)))]
    for i, first in enumerate(names):
        lines.append(f"{i:2} {first:29}" + "".join(f"{counts[first, b]:5}" for b in names))
    return "\n".join(lines)


class Met:
    """What came within ten steps of what, in worlds that passed."""

    def __init__(self) -> None:
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.triples: set[frozenset[str]] = set()

    def add(self, done: list[str]) -> None:
        """Counts a world."""
        self.pairs += pairs_of(done)
        for i, first in enumerate(done):
            near = done[i + 1 : i + 1 + NEAR]
            self.triples |= {
                frozenset((first, a, b)) for j, a in enumerate(near) for b in near[j + 1 :]
            }

    def least(self) -> list[tuple[int, str, str]]:
        """Returns the pairs, the rarest first, but for those that cannot be."""
        kinds = [(a, b) for a in OPERATIONS for b in OPERATIONS if (a, b) not in APART]
        return sorted((self.pairs[pair], *pair) for pair in kinds)

    def share(self) -> float:
        """Returns which part of the triples of different operations met."""
        met = sum(len(triple) == 3 for triple in self.triples)
        return met / math.comb(len(OPERATIONS), 3)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--pairs", type=int, help="stop once each pair met so often; print them")
    parser.add_argument("--planted", choices=PLANTED, help="a bug, in all these worlds")
    parser.add_argument("--rows", action="store_true", help="what the rows are and cover")
    parser.add_argument("--like", nargs="+", default=[], choices=OPERATIONS, metavar="OPERATION")
    args = parser.parse_args()
    if args.rows:
        for row in (*OPERATIONS.items(), *QUESTIONS.items()):
            covers = row[1].covers if isinstance(row[1], Operation) else row[1][1]
            print(row[0], *covers)
        print("configs", *CONFIGS, *OF_ORDER, *OF_CREATION)
        return 0
    logging.disable(logging.CRITICAL)
    seeds: Sequence[int] = range(args.first, args.first + args.seeds)
    if args.seed is not None:
        seeds = [args.seed]
    elif args.like:  # Of a thousand times as many those that like these most.
        seeds = liking(args.like, range(args.first, args.first + 1000 * args.seeds))[: args.seeds]
    met, worlds, failures = Met(), 0, 0
    began = time.process_time()
    for seed in seeds:
        with planted(PLANTED[args.planted]) if args.planted else nullcontext():
            world, wrong = run_one(seed, args.steps)
        worlds += 1
        if wrong is None:
            met.add(world.done)
        else:
            failures += 1
            print(f"python integration/world/run.py --seed {seed}\n    {wrong}", flush=True)
        if args.seed is not None:
            print("\n".join(world.trace))
        if args.pairs and met.least()[0][0] >= args.pairs:
            break
    few = met.least()
    if args.pairs:
        print(table_of(met.pairs))
    seconds = time.process_time() - began
    print(f"{worlds} worlds, {failures} failed, {seconds:.0f} CPU s; rarest pairs: {few[:8]}")
    print(f"{met.share():.1%} of all triples of operations met within ten steps")
    is_short = bool(args.pairs) and few[0][0] < args.pairs
    return 1 if failures or is_short else 0


if __name__ == "__main__":
    sys.exit(main())

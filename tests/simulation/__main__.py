"""Replays a seed: `python -m tests.simulation --seed 7 [--steps 40] [--trace]`."""

import argparse

from tests.simulation.world import World

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--seeds", type=int, default=1, help="so many, from there on")
parser.add_argument("--steps", type=int, default=25)
parser.add_argument("--trace", action="store_true")
options = parser.parse_args()
for seed in range(options.seed, options.seed + options.seeds):
    world = World(seed)
    try:
        digest = world.run(options.steps)
        print(seed, digest[:12], len(world.trace), "lines,", world.interruptions, "interruptions")
    finally:
        if options.trace:
            print("\n".join(world.trace))
        world.close()

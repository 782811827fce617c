"""Kills writer, cleaner, sweeper and Spark driver, at named points and at random moments.

    python integration/kill/run.py [--rounds 3] [--random 20] [--seed S] [--url URL | --s3]

See README.md in this folder.
"""

import argparse
import re
import sys
from itertools import groupby

from moments import Moments
from points import POINTS
from processes import RunError
from report import Result
from rounds import Rounds
from settle import settle
from stage import options_of_points, play
from world import World

PROGRAMS = ("writer", "cleaner", "sweeper", "driver")


def main() -> int:
    parser = options_of_points("Kill everything, and look at what is left.", rounds=3)
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, by commas")
    args = parser.parse_args()
    return play(args, World.create, lambda *stage: _run(Rounds(*stage), args))


def _run(rounds: Rounds, args: argparse.Namespace) -> tuple[list[Result], list[str]]:
    results: list[Result] = []
    programs = args.only.split(",")
    chosen = [
        p
        for p in POINTS
        if p.program in programs and re.search(args.match, f"{p.program}: {p.name}")
    ]
    try:
        for _, points in groupby(chosen, key=lambda p: p.program):
            results += rounds.at_points(list(points), args.rounds)
            if any(result.problems for result in results):
                return results, []
        if args.random:
            results += Moments(rounds, set(programs)).run(args.random)
        rounds.tell("settling")
        last, facts = settle(rounds.world)
    except RunError as e:
        return [*results, Result("run", "stopped", problems=[str(e)])], []
    return results + last, facts


if __name__ == "__main__":
    sys.exit(main())

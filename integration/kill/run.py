"""Kills writer, cleaner, sweeper and Spark driver, at named points and at random moments.

    python integration/kill/run.py [--rounds 3] [--random 20] [--seed S] [--url URL | --s3]

See README.md in this folder.
"""

import argparse
import json
import random
import re
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from moments import Moments
from points import POINTS
from processes import RunError
from report import Result, show
from rich.console import Console
from rounds import Rounds
from settle import settle
from world import World

from s3_server import s3_server

PROGRAMS = ("writer", "cleaner", "sweeper", "driver")


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child is left behind
    console = Console()
    work = Path(args.work or tempfile.mkdtemp(prefix="clog-kill-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    console.print(f"seed {seed}; work in {work}", soft_wrap=True)
    with ExitStack() as stack:
        url, options = args.url or str(work / "logs"), json.loads(args.options)
        if args.s3:
            url, options = stack.enter_context(s3_server(work))
        world = World(url, options, str(work))
        world.create()
        status = stack.enter_context(console.status("starting"))
        tell = status.update if console.is_terminal else console.print
        rounds = Rounds(world, world.save(), random.Random(seed), tell)
        results, facts = _run(rounds, args)
    show(console, results, facts)
    failed = any(result.problems for result in results)
    if failed or args.work:
        console.print(f"logs and output are in {work}", soft_wrap=True)
    else:
        shutil.rmtree(work)
    return 1 if failed else 0


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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill everything, and look at what is left.")
    parser.add_argument("--rounds", type=int, default=3, help="kills at each point (default: 3)")
    parser.add_argument(
        "--random", type=int, default=20, help="kills at random moments (default: 20)"
    )
    parser.add_argument("--seed", type=int, help="of everything drawn here; processes stay racy")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="an empty folder for the logs (default: in the work folder)")
    where.add_argument("--s3", action="store_true", help="on an S3 server of our own (moto)")
    parser.add_argument("--options", default="{}", help="storage options of --url, as JSON")
    parser.add_argument("--only", default=",".join(PROGRAMS), help="programs, by commas")
    parser.add_argument("--match", default="", help="points whose name matches this expression")
    parser.add_argument("--work", help="keep everything in this folder (default: a temporary one)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

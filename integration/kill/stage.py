"""What the runs of this folder share: their options, where they play, and who starts programs."""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from processes import Child
from report import Result, show
from rich.console import Console
from switch import CLOCK
from world import IN_DOUBT, World, at_last

from s3_server import MOTO, OTHERS, s3_server

CLOCKS_OFF_MS = (-3_600_000, -60_000, -5_000, 0, 5_000, 10_000)
"""Not an hour forward: the log of who writes then is not cleaned before its times are reset."""
WAITS_S = (1, 5, 10, 20, 30, 30)

Looked = TypeVar("Looked")


@dataclass(slots=True)
class Stage:
    """What all rounds of a run share."""

    world: World
    world_file: Path
    random: random.Random
    tell: Callable[[str], None]

    @property
    def work(self) -> Path:
        return Path(self.world.work)

    @property
    def hits(self) -> Path:
        """Where a victim says that it is at its point."""
        return self.work / "hits"

    def start(
        self,
        program: str,
        name: str,
        arguments: list[str],
        environment: dict[str, str] | None = None,
    ) -> Child:
        return Child.start(
            program,
            [str(self.world_file), *arguments],
            work=self.work,
            name=name,
            environment={CLOCK: str(self.clock_of(name)), **(environment or {})},
        )

    def patiently(self, look: Callable[[], Looked]) -> Looked:
        """Looks, again where the server was away or full meanwhile."""
        return at_last(look, IN_DOUBT, WAITS_S, self.tell)

    def clock_of(self, name: str) -> Path:
        """The file that says by how much the clock of a child is off (`switch.follow_clock`)."""
        return self.work / f"clock-{name}"

    def set_clock(self, name: str) -> None:
        """Sets the clock of a child: some seconds, or an hour back, or right again."""
        self.clock_of(name).write_text(str(self.random.choice(CLOCKS_OFF_MS)))

    def set_clocks_right(self) -> None:
        for clock in self.work.glob(self.clock_of("*").name):
            clock.write_text("0")


def options(description: str, *, minutes: int | None = None) -> argparse.ArgumentParser:
    """The options that all runs have; ``minutes``: for how long this one kills."""
    parser = argparse.ArgumentParser(description=description)
    if minutes is not None:
        most = f"of kills (default: {minutes})"
        parser.add_argument("--minutes", type=float, default=minutes, help=most)
    parser.add_argument("--seed", type=int, help="of everything drawn here; processes stay racy")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", help="an empty folder for the logs (default: in the work folder)")
    kinds, help_ = (MOTO, *OTHERS), "on an S3 server of our own (default: moto)"
    where.add_argument("--s3", nargs="?", const=MOTO, choices=kinds, help=help_)
    parser.add_argument("--options", default="{}", help="storage options of --url, as JSON")
    slower = "so many times the usual time passes between random kills (default: 1)"
    parser.add_argument("--slower", type=float, default=1.0, help=slower)
    parser.add_argument("--work", help="keep everything in this folder (default: a temporary one)")
    return parser


def options_of_points(description: str, *, rounds: int) -> argparse.ArgumentParser:
    """Those of runs that kill at named points, too."""
    parser = options(description)
    told = f"kills at each point (default: {rounds})"
    parser.add_argument("--rounds", type=int, default=rounds, help=told)
    parser.add_argument(
        "--random", type=int, default=20, help="kills at random moments (default: 20)"
    )
    parser.add_argument("--match", default="", help="points whose name matches this expression")
    return parser


def play(
    args: argparse.Namespace,
    create: Callable[[World], None],
    run: Callable[
        [World, Path, random.Random, Callable[[str], None]], tuple[list[Result], list[str]]
    ],
) -> int:
    """Creates the logs, runs what takes the parts of a `Stage`, and reports; the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child is left behind
    console = Console()
    work = Path(args.work or tempfile.mkdtemp(prefix="clog-kill-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    seed = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    console.print(f"seed {seed}; work in {work}", soft_wrap=True)
    with ExitStack() as stack:
        url, storage_options = args.url or str(work / "logs"), json.loads(args.options)
        if args.s3:
            url, storage_options = stack.enter_context(s3_server(work, args.s3))
        world = World(url, storage_options, str(work))
        create(world)
        status = stack.enter_context(console.status("starting"))
        tell = status.update if console.is_terminal else console.print
        results, facts = run(world, world.save(), random.Random(seed), tell)
    show(console, results, facts)
    failed = any(result.problems for result in results)
    if failed or args.work:
        console.print(f"logs and output are in {work}", soft_wrap=True)
    else:
        shutil.rmtree(work)
    return 1 if failed else 0

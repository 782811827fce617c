"""Interrupts a living handle at each line, or by real signals at random moments.

    python integration/interrupts/run.py                # all lines of all flows, each version mod 4
    python integration/interrupts/run.py --flow append --sample 100
    python integration/interrupts/run.py --flow "state store" --commits 3 --at 1234
    python integration/interrupts/run.py --signals 10000 --seed 7

A line is a place that a flow passes, the first time that it does; with ``--every`` each time
(``clog_testing.interrupts``). What fails is printed with the command that shows it again;
the exit code is 1.
"""

import argparse
import faulthandler
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from flows import FLOWS, Flow

from clog_testing.interrupts import interrupted, passed

SIGNAL_FLOWS = ("append", "poll", "transaction", "table", "state store")
STRIKES = 20
"""About so many signals strike one world."""
HANGS_S = 120
VERSIONS = (3, 4, 5, 6)
"""Appends before the act: it meets each version mod 4."""


def main() -> int:
    """Runs what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--flow", choices=FLOWS, action="append")
    parser.add_argument("--commits", type=int, action="append")
    parser.add_argument("--at", type=int, help="the place with this number alone")
    parser.add_argument("--sample", type=int, help="so many places of each flow and version")
    parser.add_argument("--under", default="", help="only in modules whose name begins so")
    parser.add_argument("--every", action="store_true", help="each time that a place is passed")
    parser.add_argument("--signals", type=int, help="so many real signals in place of lines")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    if given.signals is not None:
        return signals(given.flow or SIGNAL_FLOWS, given.signals, given.seed)
    worlds = [(n, c) for n in given.flow or FLOWS for c in given.commits or VERSIONS]
    with ProcessPoolExecutor(given.processes) as pool:
        some = [pool.submit(swept, *world, given) for world in worlds]
        done = [one.result() for one in some]
    places, failed = (sum(numbers) for numbers in zip(*done, strict=True))
    print(f"{places} interrupts at lines, {failed} failed")
    return int(failed > 0)


def swept(name: str, commits: int, given: argparse.Namespace) -> tuple[int, int]:
    """Interrupts one flow at all places that are asked for; how many, and how many failed."""
    chosen = [given.at] if given.at is not None else numbers(name, commits, given)
    failed = 0
    for at in chosen:
        if (said := trial(FLOWS[name], commits, at)) is not None:
            failed += 1
            print(said)
            print(f'  run.py --flow "{name}" --commits {commits} --at {at}', flush=True)
            if given.at is not None:
                traceback.print_exc()
    print(f"{name}, {commits} commits before: {len(chosen)} places, {failed} failed", flush=True)
    return len(chosen), failed


def numbers(name: str, commits: int, given: argparse.Namespace) -> list[int]:
    """The numbers of the places that are asked for."""
    for _ in range(2):  # The first time more is passed: what is made once in a process.
        flow = FLOWS[name](commits)
        places = passed(flow.act)
        flow.close()
    asked = [(place, n) for n, place in enumerate(places) if place.module.startswith(given.under)]
    first = dict(reversed(asked))
    chosen = [n for _, n in asked] if given.every else sorted(first.values())
    if given.sample is None:
        return chosen
    drawn = random.Random(f"{given.seed} {name} {commits}")
    return sorted(drawn.sample(chosen, min(given.sample, len(chosen))))


def trial(kind: type[Flow], commits: int, at: int) -> str | None:
    """What is wrong after an interrupt at one place; None: nothing."""
    flow = kind(commits)
    place = None
    try:
        place = interrupted(flow.act, at)
        flow.check()
    except (Exception, KeyboardInterrupt) as e:  # noqa: BLE001 - whatever it is, it is told
        return f"{place}: {type(e).__name__}: {e}"
    finally:
        flow.close()
    return None


def signals(names: Sequence[str], count: int, seed: int) -> int:
    """Sends real signals at random moments of acts, until so many have struck."""
    drawn = random.Random(seed)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    struck: Counter[str] = Counter()
    failed = 0
    while struck.total() < count:
        name = names[sum(struck.values()) // STRIKES % len(names)]
        try:
            struck[name] += _struck(FLOWS[name](drawn.choice(VERSIONS)), drawn)
        except (Exception, KeyboardInterrupt):  # noqa: BLE001 - whatever it is, it is told
            failed += 1
            struck[name] += 1
            print(f"{name}:", traceback.format_exc(), flush=True)
    print(f"{struck.total()} signals struck ({dict(struck)}), {failed} failed")
    return int(failed > 0)


def _struck(flow: Flow, drawn: random.Random) -> int:
    """Strikes one world with some signals, and checks it; how many struck."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True)  # A handle that hangs, in this thread.
    began = time.perf_counter()
    flow.strike(-1)
    took, struck, last = time.perf_counter() - began, 0, None
    for n in range(2 * STRIKES):
        try:
            signal.setitimer(signal.ITIMER_REAL, drawn.uniform(1e-5, took))
            flow.strike(n)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt as e:
            last = e  # Kept with all its frames, as a notebook does.
            struck += 1
            flow.struck()
    flow.check()
    del last
    flow.close()
    faulthandler.cancel_dump_traceback_later()
    return struck


if __name__ == "__main__":
    sys.exit(main())

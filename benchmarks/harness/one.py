"""Runs one scenario in the Python that runs this, and writes what it found.

python benchmarks/harness/one.py NAME --size quick --out FILE [--set rows=1000]

SIGTERM ends it early; then, and when it fails, what was found by then is written.
"""

import argparse
import importlib
import signal
import sys
import tempfile
import time
from pathlib import Path

BENCHMARKS = Path(__file__).parent.parent
sys.path[0] = str(BENCHMARKS)

from peers.environments import UnavailableError  # noqa: E402

from harness.machine import machine, versions  # noqa: E402
from harness.measure import Result  # noqa: E402


class Stop:
    """Somebody wants this to end; what was found is kept."""

    asked = False

    def __call__(self, number: int, frame: object) -> None:  # noqa: ARG002
        if not self.asked:
            self.asked = True
            raise SystemExit("stopped")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--size", default="quick")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    args = parser.parse_args()
    scenario = importlib.import_module(f"scenarios.{args.name}")
    size = dict(scenario.SIZES[args.size])
    for setting in args.settings:
        name, _, value = setting.partition("=")
        if name in size:
            size[name] = int(value)
    stop = Stop()
    signal.signal(signal.SIGTERM, stop)
    result, start = Result(), time.monotonic()
    about = {"scenario": args.name, "title": scenario.TITLE, "machine": machine()}

    def save(note: str | None = None) -> None:
        if note is not None:
            result.notes.append(f"{note} before its end: some comparisons are missing.")
        result.versions = {**versions(BENCHMARKS.parent), **result.versions}
        took = round(time.monotonic() - start)
        result.save(args.out, **about, size={"name": args.size, **size}, seconds=took)

    with tempfile.TemporaryDirectory(prefix=f"clog-{args.name}-", dir=args.folder) as folder:
        try:
            scenario.run(size, Path(folder), result)
        except UnavailableError as e:
            print(f"unavailable: {e}")
            return 3
        except BaseException:  # Spark wraps a stop, and what it meets while it is stopped, too
            save("Stopped" if stop.asked else "Failed")
            if not stop.asked:
                raise
        else:
            save()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Runs all benchmarks that this machine can, one after the other, and writes what they found.

    python benchmarks/run.py --quick            # small data; prints the tables
    python benchmarks/run.py                    # results/, results.md, docs/benchmarks.md
    python benchmarks/run.py --only limits --set rows=100000
    python benchmarks/run.py --list

Each scenario runs in a process and an environment of its own (`peers/environments.py`), made when
it is first needed. What cannot be had is skipped, with the reason.
"""

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parent
SCENARIOS = (
    *("limits", "spark_streams", "spark_latency", "spark_tables", "spark_parquet"),
    *("spark_micro_batch", "spark_table_view", "kafka_cleaning", "kafka_mirror"),
    *("table_libraries", "pypaimon_table", "paimon_table", "requests"),
    *("write_amplification", "growth", "spark_growth", "live_table", "many_writers"),
    *("far_writers", "state_stores", "spark_state"),
)
UNAVAILABLE = 3


def run_one(name: str, args: argparse.Namespace) -> str | None:
    """Runs one scenario; returns why it was skipped, or failed."""
    from peers.environments import UnavailableError, python_of

    try:
        python = python_of(importlib.import_module(f"scenarios.{name}").ENVIRONMENT)
    except UnavailableError as e:
        return str(e)
    out = args.out / f"{name}.json"
    command = [str(python), str(BENCHMARKS / "harness" / "one.py"), name, "--size", args.size]
    command += ["--out", str(out), *(f"--set={setting}" for setting in args.set)]
    log = args.out / f"{name}.log"
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("w") as said:  # Clog is compiled once, not by each worker of Spark.
        code = subprocess.run(command, stdout=said, stderr=said, env=kept, check=False).returncode
    if code == UNAVAILABLE:
        lines = log.read_text().splitlines()
        return next(x.partition(": ")[2] for x in lines if x.startswith("unavailable: "))
    return f"failed; see {log}" if code else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_const", const="quick", dest="size")
    parser.add_argument("--smallest", action="store_const", const="smallest", dest="size")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS, metavar="NAME")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=NUMBER")
    parser.add_argument("--out", type=Path, help="default: results, or quick")
    parser.add_argument("--list", action="store_true", help="the scenarios and their sizes")
    parser.add_argument("--report", action="store_true", help="only the report, of results")
    parser.add_argument("--before", type=Path, help="results of the last release: what fell since")
    parser.set_defaults(size="full")
    args = parser.parse_args()
    if args.list:
        for name in args.only:
            scenario = importlib.import_module(f"scenarios.{name}")
            print(f"{name:20} {scenario.TITLE}; {scenario.SIZES['full']}")
        return 0
    args.out = args.out or BENCHMARKS / ("results" if args.size == "full" else args.size)
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for name in () if args.report else args.only:
        print(f"{name} …", flush=True)
        reason = run_one(name, args)
        failed |= reason is not None and reason.startswith("failed")
        if reason is not None:
            print(f"{name}: {reason}")
    from harness.readme import write_table
    from harness.report import report, write_docs
    from harness.results import fallen, load

    if args.before:
        for scenario, what, who, was, now in fallen(load(args.out), load(args.before)):
            print(
                f"fell by more than 10 %: {scenario}: {what} beside {who}: {was:.2f}, now {now:.2f}"
            )
    if args.out == BENCHMARKS / "results":
        write_docs(args.out, BENCHMARKS.parent)
        write_table(BENCHMARKS.parent / "README.md", load(args.out))
    else:
        print(report(args.out))
    return failed


if __name__ == "__main__":
    sys.exit(main())

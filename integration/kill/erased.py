"""Keys are erased from a log that an author appends to, while author, eraser and cleaner are killed
at random moments. In the end each receipt is verified by the script that comes with it.

    python integration/kill/erased.py [--minutes 15] [--url URL | --s3 versitygw] [--seed S]

See README.md in this folder.
"""

import json
import subprocess
import sys
import time
from typing import Any
from urllib.parse import quote

from erasing_process import (
    AUTHOR,
    CLEANER,
    ERASED,
    ERASER,
    clock_of,
    opened,
    records_of,
)
from oracle import broken_invariants
from processes import paused
from siege import ENDS_WITHIN_S, Siege, left_of
from stage import options, play
from world import World

from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.diagnostics import verify_erasure
from clog.storage.diagnostics.verify import Check, verify_log

CONFIG = {
    "segment.bytes": "64k",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "6h",
    "file.delete.delay.ms": "8h",
    "table.publish": "delta",
}
DONE_WITHIN_S = 1800
LATE = "that were to be deleted"
"""A cleaner that has to start again is hours late, by a clock on which a day takes some minutes."""


class Erasing(Siege):
    """The processes of a log from which keys are erased."""

    names = (AUTHOR, ERASER, CLEANER)
    holds = "the log is sound, and its table has what was sent"
    holds_in_the_end = "each erasure is done, each receipt is verified, all other keys are there"
    kills_apart_s = (2.0, 10.0)
    looks_apart_s = 120
    first_look_s = 60

    def program_of(self, name: str) -> tuple[str, list[str]]:
        return "erasing_process", [name]

    def who_has_a_clock(self) -> list[str]:
        return []  # They have one of their own.

    def strike(self) -> None:
        name = self.random.choice(self.names)
        if self.kill(name):
            self.start_child(name)

    def look(self) -> list[str]:
        with paused([c for c in self.children.values() if c.is_running]):
            return self._found()

    def stop(self) -> None:
        """Ends the author and the eraser; the cleaner when all is done."""
        for name in (AUTHOR, ERASER):
            self.children.pop(name).stop(ENDS_WITHIN_S)
        deadline = time.monotonic() + DONE_WITHIN_S
        while self._pending() and time.monotonic() < deadline:
            self.check_alive()
            time.sleep(5)
        self.children[CLEANER].stop(ENDS_WITHIN_S)

    def problems(self) -> list[str]:
        pending = [f"{one.id} waits: {one.reason}" for one in self._pending()]
        return pending + self._found(ended=True) + self._unverified()

    def swept_problems(self) -> list[str]:
        log = opened(self.world)
        log.roll()
        Cleaner(log).run_once(force=True)
        return self._found(ended=True) + broken_invariants(self.world, [ERASED])

    def facts(self) -> list[str]:
        log = opened(self.world)
        done = [one for one in log.erasures() if one.state == "done"]
        appended = len(self.world.acknowledged(AUTHOR, ERASED))
        return [f"{appended:,} appends; {len(done)} erasures done", left_of(log)]

    def _pending(self) -> list[Any]:
        return [one for one in opened(self.world).erasures() if one.state != "done"]

    def _found(self, *, ended: bool = False) -> list[str]:
        """``ended``: each erasure is done; one without tombstones waits for a round until then."""
        store = self.world.store(ERASED)
        found = [
            f"{f.check} {f.where}: {f.message}"
            for f in verify_log(store).findings
            if ended or not (f.check is Check.VIEW and LATE in f.message)
        ]
        rows = opened(self.world).table().to_arrow(columns=["key", "value"]).to_pylist()
        table = {row["key"].decode(): row["value"].decode() for row in rows}
        told = self.world.acknowledged(ERASER, ERASED)
        begun = {n for line in told for n in line["appends"]}
        gone = (line for line in told if "id" in line and (ended or line["notify"]))
        asked = {n for line in gone for n in line["appends"]}
        for n in sorted(line["n"] for line in self.world.acknowledged(AUTHOR, ERASED)):
            right = {str(record["key"]): record["value"] for record in records_of(n)}
            there = {key: table[key] for key in right if key in table}
            if (n in asked and there) or (n not in begun and there != right):
                found.append(f"append {n}: {len(there)} of {len(right)} keys are in the table")
            if n in begun and there not in ({}, right):
                found.append(f"append {n} was erased in part: {len(there)} keys are left")
        return found

    def _unverified(self) -> list[str]:
        """What the script finds that comes with receipts."""
        secrets = {
            line["id"]: line["secret"]
            for line in self.world.acknowledged(ERASER, ERASED)
            if "id" in line
        }
        found = []
        for one in opened(self.world).erasures():
            if one.state != "done" or one.id not in secrets:
                continue
            path = self.work / f"receipt-{one.id}.json"
            path.write_text(json.dumps(one.receipt))
            script = [sys.executable, "-I", verify_erasure.__file__, str(path)]
            script += [place_of(self.world), "--secret", secrets[one.id]]
            done = subprocess.run(script, capture_output=True, text=True, check=False)
            if done.returncode:
                found.append(f"{one.id}: {done.stdout[-500:]}{done.stderr[-500:]}")
        return found


def place_of(world: World) -> str:
    """The log's folder, or its URL as pyarrow wants it, for a server of our own."""
    url, given = world.url_of(ERASED), world.storage_options
    if "key" not in given:
        return url
    client = given["client_kwargs"]
    endpoint = client["endpoint_url"].removeprefix("http://")
    login = f"{quote(given['key'])}:{quote(given['secret'])}@"
    query = f"scheme=http&endpoint_override={endpoint}&region={client['region_name']}"
    return f"s3://{login}{url.removeprefix('s3://')}?{query}"


def create(world: World) -> None:
    options = world.storage_options
    Log.create(world.url_of(ERASED), 2, CONFIG, options, clock=clock_of(world))


def main() -> int:
    args = options(
        "Keys are erased, everybody is killed at random moments.", minutes=15
    ).parse_args()
    return play(args, create, lambda *stage: Erasing(*stage).run(args.minutes, args.slower))


if __name__ == "__main__":
    sys.exit(main())

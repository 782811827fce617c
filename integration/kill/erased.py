"""Keys are erased from a log that an author appends to, while author, eraser and cleaner are killed
at random moments. Each receipt is verified by the script that comes with it, and no file that the
store keeps has the bytes of a key whose erasure is done.

    python integration/kill/erased.py [--minutes 15] [--url URL | --s3 versitygw] [--seed S]

See README.md in this folder.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from erasing_process import (
    APPEND,
    AUTHOR,
    CLEANER,
    ERASED,
    ERASER,
    clock_of,
    opened,
    records_of,
)
from processes import paused
from report import Result
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
AT_A_LOOK = 2
"""So many receipts that came since the look before are verified while all stand still."""
VERIFIERS, TRIES = 4, 3
"""How many run at once, and how often: the network is hostile to them, too."""
LATE = "whose deletion was due"
"""A cleaner that has to start again is hours late, by a clock on which a day takes some minutes."""


class Erasing(Siege):
    """The processes of a log from which keys are erased."""

    names = (AUTHOR, ERASER, CLEANER)
    holds = "the log is sound, and its table has what was sent"
    holds_in_the_end = "each erasure is done, each receipt is verified, all other keys are there"
    kills_apart_s = (2.0, 10.0)
    looks_apart_s = 120
    first_look_s = 60

    def __init__(self, *stage: Any, raw: list[Path]) -> None:
        super().__init__(*stage)
        self.raw = raw
        self.verified: set[str] = set()
        self.searched = 0

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
            return self._found() + self._unverified(AT_A_LOOK)

    def stop(self) -> None:
        """Ends the author and the eraser; the cleaner when all is done."""
        for name in (AUTHOR, ERASER):
            self.children.pop(name).stop(ENDS_WITHIN_S)
        deadline = time.monotonic() + DONE_WITHIN_S
        while self.patiently(self._pending) and time.monotonic() < deadline:
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
        return self._found(ended=True)

    def missed(self) -> list[str]:
        return super().missed() + ["no receipt was verified"] * (not self.verified)

    def facts(self) -> list[str]:
        log = opened(self.world)
        done = [one for one in log.erasures() if one.state == "done"]
        appended = len(self.world.acknowledged(AUTHOR, ERASED))
        told = f"{appended:,} appends; {len(done)} erasures done"
        told += f"; {len(self.verified)} receipts verified"
        return [f"{told}; {self.searched:,} files searched at last", left_of(log)]

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
        done = {one.id for one in opened(self.world).erasures() if one.state == "done"}
        return found + self._left({n for x in told if x.get("id") in done for n in x["appends"]})

    def _left(self, gone: set[int]) -> list[str]:
        """The files of the store, old versions among them, that have a key of one of these appends
        in their bytes, their rows or their name.
        """
        found: list[str] = []
        files = [path for folder in self.raw for path in folder.rglob("*") if path.is_file()]
        for path in files:
            with suppress(FileNotFoundError):  # The server is at work.
                texts = [path.name.encode(), data := path.read_bytes()]
                texts += [rows_of(path)] if data[:4] == data[-4:] == b"PAR1" else []
                there = {int(n) for text in texts for n in APPEND.findall(text)}
                found += [f"{path} has a key of append {n}" for n in sorted(there & gone)[:3]]
        self.searched = len(files)
        return found

    def _unverified(self, most: int | None = None) -> list[str]:
        """What the script finds that comes with receipts; ``most``: of those never verified."""
        secrets = {
            line["id"]: line["secret"]
            for line in self.world.acknowledged(ERASER, ERASED)
            if "id" in line
        }
        done = [one for one in opened(self.world).erasures() if one.state == "done"]
        asked = [one for one in done if one.id in secrets]
        if most is not None:
            asked = [one for one in asked if one.id not in self.verified][-most:]
        with ThreadPoolExecutor(VERIFIERS) as pool:
            told = [pool.submit(self._verify, one, secrets[one.id]) for one in asked]
        return [problem for one in told for problem in one.result()]

    def _verify(self, one: Any, secret: str) -> list[str]:
        path = self.work / f"receipt-{one.id}.json"
        path.write_text(json.dumps(one.receipt))
        script = [sys.executable, "-I", verify_erasure.__file__, str(path)]
        script += [place_of(self.world), "--secret", secret]
        for _ in range(TRIES):
            done = subprocess.run(script, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                self.verified.add(one.id)
                return []
            time.sleep(5)
        return [f"{one.id}: {done.stdout[-500:]}{done.stderr[-500:]}"]


def rows_of(path: Path) -> bytes:
    """All values of a Parquet file, uncompressed."""
    table, sink = pq.read_table(path), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


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
    parser = options("Keys are erased, everybody is killed at random moments.", minutes=15)
    where = "folders of the server of --url, in which no byte of an erased key may be left"
    parser.add_argument("--raw", type=Path, nargs="+", default=[], help=where)
    args = parser.parse_args()

    def run(*stage: Any) -> tuple[list[Result], list[str]]:
        is_local = not (args.s3 or args.url)
        raw = [*args.raw, *([Path(stage[0].url)] if is_local else [])]
        return Erasing(*stage, raw=raw).run(args.minutes, args.slower)

    return play(args, create, run)


if __name__ == "__main__":
    sys.exit(main())

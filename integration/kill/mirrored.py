"""A topic of a real Kafka broker is mirrored into a log that a cleaner cleans, while all of them,
and who produces, are killed at random moments.

    python integration/kill/mirrored.py [--minutes 10] [--url URL | --s3 versitygw] [--seed S]

See README.md in this folder.
"""

import sys
from pathlib import Path
from typing import Any

from oracle import broken_invariants
from processes import Child
from report import Result
from siege import ENDS_WITHIN_S, Siege, left_of, sweep
from stage import options, play
from world import World

from clog.bridge import MirrorSettings
from clog.cleaner import Cleaner
from clog.storage import Log
from clog.storage.diagnostics.verify import verify_log

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from peers.kafka import Broker

TOPIC = "mirrored"
PARTITIONS = 3
MIRROR, PRODUCER, CLEANER, BROKER = "mirror", "producer", "cleaner", "broker"
JAVA = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
KINDS = ("store_unavailable", "commit_state_unknown")
CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.2",
    "delete.retention.ms": "60000",
}


class MirrorSiege(Siege):
    """The processes of a mirror; the broker is of another kind, and a victim all the same."""

    names = (PRODUCER, MIRROR, CLEANER)
    holds = "what the log has is sound"
    holds_in_the_end = "log and topic agree, and no acknowledged record is missing"
    kills_apart_s = (2.0, 8.0)
    looks_apart_s = 120
    first_look_s = 60

    def __init__(self, *stage: Any, broker: Broker) -> None:
        super().__init__(*stage)
        self.broker = broker

    def program_of(self, name: str) -> tuple[str, list[str]]:
        source = f"kafka://{self.broker.address}/{TOPIC}"
        if name == MIRROR:
            return "mirror_process", [source, TOPIC]
        if name == PRODUCER:
            return "topic_producer", [self.broker.address, TOPIC]
        return "cleaner", [TOPIC]

    def who_has_a_clock(self) -> list[str]:
        return [MIRROR, CLEANER]

    def may_fail(self, child: Child) -> bool:
        """A mirror ends where the store fails for long; not where a broker does."""
        said = child.last_words()
        return child.name == MIRROR and any(f'"kind": "{kind}"' in said for kind in KINDS)

    def begin(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 2})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIG)])[TOPIC].result()
        self.patiently(self._mirror)  # The cleaner wants a log.
        super().begin()

    def strike(self) -> None:
        name = self.random.choice([*self.names, MIRROR, BROKER])
        if name == BROKER:
            self.broker.kill()
            self.kills[BROKER] += 1
            self.broker.__enter__()
        elif self.kill(name):
            self.start_child(name)

    def look(self) -> list[str]:
        return [f"{f.check} {f.where}: {f.message}" for f in self._verified()]

    def stop(self) -> None:
        self.children[PRODUCER].stop(ENDS_WITHIN_S)
        self.children[MIRROR].end()
        self.patiently(self._mirror)
        self.children[CLEANER].stop(ENDS_WITHIN_S)

    def problems(self) -> list[str]:
        from clog.bridge import verify

        told = verify(
            f"kafka://{self.broker.address}/{TOPIC}",
            self.world.url_of(TOPIC),
            storage_options=self.world.storage_options,
        )
        found = [str(difference) for difference in told.differences[:3]]
        found += [f"{f.check} {f.where}: {f.message}" for f in self._verified()]
        return found + self._lost() + broken_invariants(self.world, [TOPIC])

    def swept_problems(self) -> list[str]:
        log = opened(self.world)
        Cleaner(log).run_once(force=True)
        sweep(opened(self.world))
        return self.problems()

    def missed(self) -> list[str]:
        return super().missed() + ["the broker was never killed"] * (not self.kills[BROKER])

    def facts(self) -> list[str]:
        records = sum(line["n"] for line in self.world.acknowledged(PRODUCER, TOPIC)[-1:])
        told = f"{records:,} records acknowledged by the broker; {self.failures} mirrors failed"
        return [told, left_of(opened(self.world))]

    def _mirror(self) -> list[str]:
        from clog.bridge import mirror

        source = f"kafka://{self.broker.address}/{TOPIC}"
        url, storage_options = self.world.url_of(TOPIC), self.world.storage_options
        mirror(source, url, MirrorSettings(once=True, storage_options=storage_options))
        return []

    def _verified(self) -> Any:
        return verify_log(self.world.store(TOPIC)).findings

    def _lost(self) -> list[str]:
        """Each key shows the last number of it that the broker acknowledged, or a later one."""
        latest: dict[str, int] = {}
        for line in self.world.acknowledged(PRODUCER, TOPIC):
            latest |= {key: n for key, n in line["keys"].items() if n > latest.get(key, -1)}
        rows = opened(self.world).table().to_arrow(columns=["key", "value"]).to_pylist()
        shown = {row["key"].decode(): int(row["value"].partition(b":")[0]) for row in rows}
        wrong = [key for key, n in latest.items() if shown.get(key, -1) < n]
        if not wrong:
            return []
        first = f"{wrong[0]} shows {shown.get(wrong[0])}, and {latest[wrong[0]]} was acknowledged"
        return [f"{len(wrong)} keys: {first}"]


def opened(world: World) -> Log:
    return Log.open(world.url_of(TOPIC), world.storage_options)


def main() -> int:
    args = options(
        "A mirror of a topic, everybody killed at random moments.", minutes=10
    ).parse_args()

    def run(*stage: Any) -> tuple[list[Result], list[str]]:
        folder = Path(stage[0].work, "broker")
        with Broker(
            folder, {"log.cleaner.backoff.ms": 2000}, heap="512m", java_options=JAVA
        ) as broker:
            return MirrorSiege(*stage, broker=broker).run(args.minutes, args.slower)

    return play(args, lambda _: None, run)


if __name__ == "__main__":
    sys.exit(main())

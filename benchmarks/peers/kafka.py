"""One Kafka broker in KRaft mode, on this machine, from its jars.

    python benchmarks/peers/kafka.py --folder /var/tmp/broker     # until Ctrl-C

Kafka's defaults, but for one replica of everything, segments of the size of clog's, and what a
scenario sets. What the cleaner did is read from the broker's own log.
"""

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

sys.path.append(str(Path(__file__).parent.parent))

from peers.environments import jars, java

START_S = 600
HEAP = "1g"
CLEANED = re.compile(
    r"Log cleaner thread \d+ cleaned log \S+ .*?"
    r"MB of log processed in (?P<seconds>[\d,.]+) seconds.*?"
    r"Start size: (?P<start_mb>[\d,.]+) MB \((?P<records>[\d,]+) messages\)\s+"
    r"End size: (?P<end_mb>[\d,.]+) MB \((?P<left>[\d,]+) messages\)",
    re.DOTALL,
)
_FIELDS = {"seconds": float, "records": int, "start_mb": float, "left": int, "end_mb": float}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A pass of Kafka's LogCleaner, as it tells it itself."""

    seconds: float
    records: int
    start_mb: float
    left: int
    end_mb: float


class Broker:
    """Started on entry, stopped on exit; its folder may be used again, and it may be started again,
    at the same address.

    Attributes:
        address: for clients.
        pid: of its Java process.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object] | None = None,
        *,
        heap: str = HEAP,
        java_options: Sequence[str] = ("-XX:+UseG1GC",),
    ) -> None:
        self.folder = folder
        self._java_options = java_options
        self._config = dict(config or {})
        self._heap = heap
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[int] = []
        self.address = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = self._ports = self._ports or free_ports(2)
        self.address = f"127.0.0.1:{ports[0]}"
        properties = self.folder / "server.properties"
        properties.write_text(
            "".join(f"{k}={v}\n" for k, v in {**self._base(ports), **self._config}.items())
        )
        if not (self.folder / "data" / "meta.properties").exists():
            cluster = ["-t", uuid.uuid4().hex[:22], "-c", str(properties), "--standalone"]
            self._java("kafka.tools.StorageTool", "format", *cluster).wait()
        self._log.unlink(missing_ok=True)
        self._process = self._java("kafka.Kafka", str(properties))
        try:
            self._await(r"\] Kafka Server started", START_S)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def kill(self) -> None:
        """Ends it at once, as a power cut would for its process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for_passes(self, count: int, wait_s: float) -> list[Cleaned]:
        """The passes since the start, once there are so many of them."""
        self._await(CLEANED, wait_s, count)
        return self.passes()

    def passes(self) -> list[Cleaned]:
        """What its cleaner did since the start."""
        return [
            Cleaned(**{name: kind(_number(m[name])) for name, kind in _FIELDS.items()})
            for m in CLEANED.finditer(self._log.read_text())
        ]

    def cleaner_cpu_seconds(self) -> float:
        """CPU time of the cleaner's thread so far."""
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            name, _, fields = stat.read_text().partition("(")[2].rpartition(")")
            if name.startswith("kafka-log-clean"):
                user, system = fields.split()[11:13]
                return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        raise ValueError("the broker has no thread that cleans")

    @property
    def _log(self) -> Path:
        return self.folder / "broker.log"

    def _base(self, ports: list[int]) -> dict[str, object]:
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{ports[1]}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{ports[1]}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.segment.bytes": 64 << 20,
            "num.partitions": 4,
        }

    def _java(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as out:
            return subprocess.Popen(
                [
                    *(java(), f"-Xmx{self._heap}", f"-Xms{self._heap}", *self._java_options),
                    *("-cp", f"{jars('kafka')}/*", main, *arguments),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _await(self, pattern: str | re.Pattern[str], wait_s: float, count: int = 1) -> None:
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            said = self._log.read_text()
            if len(re.findall(pattern, said)) >= count:
                return
            if self._process is not None and self._process.poll() is not None:
                break
            time.sleep(0.05)
        last = "\n".join(self._log.read_text().splitlines()[-20:])
        raise TimeoutError(f"the broker did not say {pattern!r} in {wait_s:.0f} s:\n{last}")


def produce(address: str, topic: str, tables: Iterable[pa.Table]) -> None:
    """Sends key and value of each row, in order, table by table."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": "zstd",
            "linger.ms": 50,
            "batch.size": 1 << 20,
            "enable.idempotence": True,  # keeps the order
        }
    )
    for table in tables:
        columns = (table.column(name).to_pylist() for name in ("key", "value"))
        for key, value in zip(*columns, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:  # its queue is full
                    producer.poll(0.05)
        assert producer.flush(START_S) == 0


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    with Broker(parser.parse_args().folder) as broker:
        print(f"Kafka listens on {broker.address}")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    sys.exit(main())

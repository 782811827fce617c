"""Where a topic is and what it is; no broker is contacted."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from clog.bridge import MirrorSettings, mirror, topic
from clog.bridge.topic import Cluster, Topic, _as_printed, address_of
from clog.storage import ManualClock
from clog.storage.errors import InvalidInputError, SourceUnavailableError


def test_addresses_are_read():
    """Brokers as Kafka's clients accept them, port 9092 if none is given, a name or a pattern."""
    address = address_of("kafka://a, b:9093,[::1]:9/orders.eu-1")
    assert (address.brokers, address.topic) == ("a:9092,b:9093,[::1]:9", "orders.eu-1")
    assert not address.is_pattern
    assert str(address_of("kafka://a/orders-*").of("orders-7")) == "kafka://a:9092/orders-7"
    assert address_of("kafka://a/orders-*").is_pattern


@pytest.mark.parametrize(
    "text",
    ["orders", "kafka:/a/b", "kafka://", "kafka:///t", "kafka://a", "kafka://a/", "kafka://a,/t"],
)
def test_what_is_no_address_is_refused(text):
    """With its form."""
    with pytest.raises(InvalidInputError, match="kafka://HOST:PORT/TOPIC"):
        address_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "kafka://me:secret@a/orders",
        "kafka://me:pass/secret@a/orders",
        "kafka://me:secret/orders@",
        "https://a/orders?sig=secret",
    ],
)
def test_a_password_in_an_address_is_not_repeated(text):
    """It belongs in the client's options."""
    with pytest.raises(InvalidInputError, match=r"sasl\.password") as caught:
        address_of(text)
    assert "secret" not in str(caught.value)


def test_a_path_is_no_topic():
    """Topics have no slash in their names."""
    with pytest.raises(InvalidInputError, match="names cannot contain"):
        address_of("kafka://a/orders/7")


def test_ids_are_as_kafka_prints_them():
    """The client returns a different base64; an id of zeros comes from brokers that know none."""
    assert _as_printed("3qn3ImSZREmvK/mhd8HB+A") == "3qn3ImSZREmvK_mhd8HB-A"
    assert Topic("c", "orders", "id", 3).source == "kafka:c/id"
    for nothing in ("AAAAAAAAAAAAAAAAAAAAAA", "", "?"):
        with pytest.raises(InvalidInputError, match=r"Kafka 2\.8"):
            _as_printed(nothing)


@pytest.mark.parametrize(
    "options", [{"security.protocol": "secret"}, {"secret": "1"}, {"log_level": "secret"}]
)
def test_options_that_the_client_refuses_are_told_without_their_values(options):
    """librdkafka's own message repeats a value."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with pytest.raises(InvalidInputError, match="rejects") as caught:
        Cluster("a:1", options)
    assert "secret" not in str(caught.value).replace("option secret", "")


def test_brokers_that_do_not_answer_are_told_soon_and_then_an_error(monkeypatch, caplog):
    """The message names them, what waits, what the client said last and what to do; the wait is the
    requested one.
    """
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    assert topic.WORD_S == 5.0
    monkeypatch.setattr(topic, "WORD_S", 0.3)
    with pytest.raises(
        SourceUnavailableError,
        match=r"127\.0\.0\.1:1 did not return topic orders.*Connection refused",
    ):
        Cluster("127.0.0.1:1", {}, wait_ms=1000).topic("orders")
    (word,) = [record.getMessage() for record in caplog.records]
    assert word.startswith("127.0.0.1:1 has not sent topic orders for 0.3 s (the client says: ")
    assert "Connection refused" in word
    assert "waiting for up to 1 s; check the address, and that the brokers are running" in word


def test_who_is_to_stop_does_not_wait_for_brokers_that_do_not_answer(monkeypatch, caplog):
    """Otherwise it would notice SIGTERM after a minute, and be killed before."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    monkeypatch.setattr(topic, "WORD_S", 0.1)
    silent = Cluster("127.0.0.1:1", {}, wait_ms=600_000, should_stop=lambda: True)
    with pytest.raises(SourceUnavailableError, match="did not return topic orders"):
        silent.topic("orders")
    assert not caplog.records


class Going:
    """Kafka's admin client with a broker that disappears while it should respond, this
    many times.
    """

    def __init__(self, times: int, kind: str) -> None:
        self.times, self.kind, self.asked = times, kind, 0
        self.fails_at_its_end = False

    def __call__(self, options):
        return self

    def poll(self, _):
        """Reports nothing."""

    def answer(self, told):
        import confluent_kafka

        self.asked += 1
        future = Future()
        if self.asked <= self.times:
            code = getattr(confluent_kafka.KafkaError, self.kind)
            error = confluent_kafka.KafkaError(code, "gone")
            future.set_exception(confluent_kafka.KafkaException(error))
        else:
            future.set_result(told)
        return future

    def describe_topics(self, asked, **_):
        told = SimpleNamespace(topic_id="3qn3ImSZREmvK/mhd8HB+A", partitions=[0, 1])
        return {"orders": self.answer(told)}

    def describe_cluster(self, **_):
        return self.answer(SimpleNamespace(cluster_id="c"))

    def describe_configs(self, resources, **_):
        return {resource: self.answer({}) for resource in resources}

    def list_offsets(self, asked, **how):
        self.times = 1000 if self.fails_at_its_end and "isolation_level" in how else self.times
        return {place: self.answer(SimpleNamespace(offset=7)) for place in asked}


@pytest.mark.parametrize("kind", ["_TRANSPORT", "_NOENT", "UNKNOWN_LEADER_EPOCH"])
def test_a_broker_that_goes_away_while_it_is_asked_is_asked_again(monkeypatch, kind):
    """The client reports at once that a running request is lost, and does not repeat it; a mirror
    that was started at that moment ended, however long it was to wait.
    """
    pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")
    clock = ManualClock()
    admin = Going(3, kind)
    monkeypatch.setattr(topic, "_admin_client", lambda: admin)
    cluster = Cluster("a:1", {}, wait_ms=1000, clock=clock)
    assert cluster.topic("orders") == Topic("c", "orders", "3qn3ImSZREmvK_mhd8HB-A", 2)
    admin.asked = 0
    assert cluster.extent("orders", [0, 1]).stable == {0: 7, 1: 7}
    admin.asked, admin.times = 0, 1000
    before_ms = clock.monotonic_ms()
    with pytest.raises(SourceUnavailableError, match="did not return topic orders: gone"):
        cluster.topic("orders")
    assert clock.monotonic_ms() - before_ms == 1000


def test_a_mirror_whose_broker_fails_before_it_reads_says_so(monkeypatch):
    """It knew where to start, but had no end: it stopped reading what it had not started to read,
    which Kafka's client refuses with an error of its own.
    """
    pytest.importorskip("confluent_kafka.admin", reason="confluent-kafka is not installed")
    admin = Going(0, "CLUSTER_AUTHORIZATION_FAILED")
    admin.fails_at_its_end = True
    monkeypatch.setattr(topic, "_admin_client", lambda: admin)
    with pytest.raises(InvalidInputError, match="refuses to return the offsets of topic orders"):
        mirror(
            "kafka://127.0.0.1:1/orders", "memory://refused", MirrorSettings(clock=ManualClock())
        )


@pytest.mark.parametrize("wait_ms", [0, -1, 1 << 31, 1.5, None, True])
def test_a_wait_that_is_none_is_refused(wait_ms):
    """Before a broker is contacted."""
    with pytest.raises(InvalidInputError, match="allowed: 1 to"):
        mirror("kafka://127.0.0.1:1/orders", "memory://unused", MirrorSettings(wait_ms=wait_ms))


class Consumer:
    """A client before release 2.13: after an event its position is one offset too far."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.at = {}

    def incremental_assign(self, places):
        self.at |= {place.partition: place.offset for place in places}

    def incremental_unassign(self, _):
        pass

    def consume(self, *_):
        batch = self.batches.pop(0)
        self.at |= {one.partition(): one.offset() + 1 for one in batch}
        return batch

    def position(self, places):
        import confluent_kafka

        of = confluent_kafka.TopicPartition
        return [of(place.topic, place.partition, self.at[place.partition]) for place in places]


class Message:
    """A record, or an event."""

    def __init__(self, partition, offset, code=None):
        self.place = partition, offset
        self.code = code

    def __len__(self):
        return 1

    def topic(self):
        return "t"

    def partition(self):
        return self.place[0]

    def offset(self):
        return self.place[1]

    def error(self):
        from confluent_kafka import KafkaError

        return None if self.code is None else KafkaError(self.code)


def test_a_position_is_not_beyond_an_end_at_which_nothing_was_read():
    """Nor beyond a record that the broker cannot read, whatever the client counts; what is read
    there later moves it.
    """
    kafka = pytest.importorskip("confluent_kafka")
    end, damaged = kafka.KafkaError._PARTITION_EOF, kafka.KafkaError._BAD_MSG
    client = Consumer(
        [Message(0, 4), Message(0, 5, end), Message(1, 7)],
        [Message(1, 8, end), Message(1, 8)],
        [Message(0, 5), Message(0, 6, end), Message(0, 6), Message(1, 9, damaged)],
        [],
    )
    feed = topic.Feed(SimpleNamespace(consumer=lambda _: client))
    feed.add({("t", 0): topic.At(4), ("t", 1): topic.At(7)})

    def taken():
        feed.take()
        return [at.offset for at in feed.positions([("t", 0), ("t", 1)]).values()]

    assert [taken() for _ in range(4)] == [[5, 8], [5, 9], [7, 9], [7, 9]]

"""A topic's configs as a log's: what is adopted, what is not and why."""

import pytest

from clog.bridge.mirroring import taken_over, users_own
from clog.bridge.topic import Setting
from clog.storage.config.log_config import POINTLESS, LogConfig
from clog.storage.errors import InvalidInputError


def own(**settings):
    return {name.replace("_", "."): Setting(value, True) for name, value in settings.items()}


def brokers(**settings):
    return {name.replace("_", "."): Setting(value, False) for name, value in settings.items()}


def test_a_topic_is_delete_unless_it_says_otherwise():
    """The broker's default is adopted, as a log's own is compact."""
    assert taken_over(brokers(cleanup_policy="delete"), {})[0]["cleanup.policy"] == "delete"
    assert "cleanup.policy" not in taken_over(own(cleanup_policy="compact"), {})[0]


def test_what_a_broker_has_for_its_files_stays_with_it():
    """If nobody set it for the topic."""
    config, left = taken_over(
        brokers(segment_bytes="1048576", file_delete_delay_ms="60000", retention_ms="5"), {}
    )
    assert config == {"partitioner": "murmur2", "retention.ms": "5"}
    assert not left


def test_what_the_user_gives_wins():
    """Over the topic's, and over the default partitioner."""
    given = {"retention.ms": "1d", "partitioner": "xxh3"}
    config, _ = taken_over(own(retention_ms="5"), given)
    assert config == {"retention.ms": "86400000", "partitioner": "xxh3"}


@pytest.mark.parametrize(
    ("codec", "log"), [("uncompressed", "none"), ("lz4", "lz4"), ("snappy", "snappy")]
)
def test_codecs_by_their_names_here(codec, log):
    """Kafka creates none otherwise."""
    assert taken_over(own(compression_type=codec), {})[0]["compression.type"] == log


def test_what_has_no_counterpart_is_listed_with_the_reason():
    """Nothing that was set for the topic is dropped silently."""
    topic = own(
        compression_type="gzip",
        message_timestamp_type="LogAppendTime",
        min_insync_replicas="2",
        remote_storage_enable="true",
        future_config="1",
    )
    left = taken_over(topic, {})[1]
    assert set(left) == set(topic)
    assert POINTLESS["min.insync.replicas"] in left["min.insync.replicas"]


def test_what_is_taken_makes_a_log():
    """It passes the log's own checks, including Java's limits."""
    topic = own(
        max_compaction_lag_ms=str(2**63 - 1), retention_ms="-1", segment_bytes="14", segment_ms="1"
    )
    config = LogConfig.from_overrides(taken_over(topic, {})[0])
    assert (config.retention_ms, config.segment_bytes) == (-1, 14)


def test_a_log_that_overwrites_times_is_refused():
    """H-B12: each record would have the time of its commit."""
    with pytest.raises(InvalidInputError, match="LogAppendTime"):
        users_own({"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(InvalidInputError, match=r"did you mean retention\.ms"):
        users_own({"retention": "5"})

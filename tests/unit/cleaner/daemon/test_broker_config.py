"""The daemon's config under a broker's names."""

import pytest

from clog.cleaner.daemon.broker_config import OF_THE_CLEANER, SETTINGS, broker_config
from clog.storage import InvalidInputError
from clog.storage.config.log_config import BROKER_NAMES, DEFINITIONS


def test_kafkas_defaults():
    """S45: they are Kafka's names where Kafka has them."""
    config = broker_config({})
    assert (config.threads, config.dedupe_buffer_bytes, config.backoff_ms) == (1, 128 << 20, 15_000)
    assert (config.compaction, config.retention_check_ms) == (True, 300_000)
    assert config.io_bytes_per_second is None
    assert config.defaults == {}


def test_what_is_of_the_process():
    """S45: also numbers as Kafka writes them."""
    config = broker_config(
        {
            "log.cleaner.enable": "false",
            "log.cleaner.threads": "3",
            "log.cleaner.io.max.bytes.per.second": "1.7976931348623157E308",
            "log.cleaner.hash.algorithm": "BLAKE2B",
        }
    )
    assert (config.compaction, config.threads) == (False, 3)
    assert config.io_bytes_per_second == 1.7976931348623157e308
    assert config.hash_algorithm == "blake2b"


def test_what_is_a_default_of_logs():
    """S45: in the unit of the log's own config; the finest of several units wins, in any order."""
    hours, minutes = {"log.retention.hours": 48}, {"log.retention.minutes": "5"}
    assert broker_config(hours).defaults == {"retention.ms": str(48 * 3_600_000)}
    for given in (hours | minutes, minutes | hours):
        assert broker_config(given).defaults == {"retention.ms": "300000"}
    assert broker_config({"log.retention.hours": "-1"}).defaults == {"retention.ms": "-1"}


@pytest.mark.parametrize("name", sorted(BROKER_NAMES))
def test_every_broker_name(name):
    """S45: each has a default, or a stated reason why not."""
    ours, factor = BROKER_NAMES[name]
    value = DEFINITIONS[ours].default
    if ours in OF_THE_CLEANER:
        given = value // factor if factor != 1 else value
        assert ours in broker_config({name: given}).defaults
    else:
        with pytest.raises(InvalidInputError, match=f"set {ours} on each log"):
            broker_config({name: value})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log.cleaner.thread": 1}, "did you mean log.cleaner.threads?"),
        ({"log.retention.hour": 1}, "did you mean log.retention.hours?"),
        ({"retention.ms": 1}, "here, the default of all logs is log.retention.ms"),
        ({"max.message.bytes": 1}, "a log: change it with"),
        ({"log.cleaner.io.buffer.size": 1}, "objects are read by row group"),
        ({"log.cleanup.interval.mins": 5}, "use log.retention.check.interval.ms"),
        ({"log.retention.hours.per.topic": "a:1"}, "use retention.ms of each log"),
        ({"log.cleaner.enabled": "true"}, "use log.cleaner.enable of the daemon"),
        ({"log.cleanup.policy": "delete"}, "set cleanup.policy on each log"),
        ({"delete.and.compact": "true"}, "cleanup.policy=compact,delete of each log"),
        (
            {"log.cleaner.min.compaction.lag.ms": 2, "log.cleaner.max.compaction.lag.ms": 1},
            "the daemon's defaults contradict each other: min.compaction.lag.ms=2 is above",
        ),
        ({"zebra": 1}, "valid names are log.cleaner.backoff.ms, "),
        ({"log.cleaner.threads": 0}, "log.cleaner.threads=0 is refused; allowed: integers from 1"),
        ({"log.cleaner.enable": "yes"}, "allowed: true, false"),
        ({"log.cleaner.io.max.bytes.per.second": 0}, "allowed: numbers above 0"),
        ({"log.retention.hours": "x"}, "log.retention.hours"),
        ({"log.retention.bytes": -2}, "log.retention.bytes: "),
    ],
)
def test_what_is_refused(given, message):
    """S43, S45: the name, the value, and what is allowed or was probably meant."""
    with pytest.raises(InvalidInputError) as refused:
        broker_config(given)
    assert message in str(refused.value)


def test_each_setting_is_explained():
    """Its text is part of the error of a refusal."""
    assert all(setting.doc for setting in SETTINGS.values())

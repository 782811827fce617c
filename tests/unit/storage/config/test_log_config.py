"""A log's configs: names, defaults, ranges, canonical strings, and the errors for wrong ones."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clog.storage.config.log_config import (
    BROKER_NAMES,
    DEFINITIONS,
    POINTLESS,
    LogConfig,
    parse_overrides,
)
from clog.storage.config.units import Integer
from clog.storage.errors import InvalidInputError

LONG_MAX = 9223372036854775807
DEFAULTS = {
    "compaction.late": "keep",
    "compaction.late.scope": "key",
    "compaction.strategy": "offset",
    "compaction.strategy.header": "",
    "cleanup.policy": "compact",
    "compression.type": "zstd",
    "compression.zstd.level": "2",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "86400000",
    "dead.rows.delay.ms": "604800000",
    "reader.hold.max.ms": "0",
    "table.publish": "none",
    "table.publish.interval.ms": "60000",
    "max.compaction.lag.ms": str(LONG_MAX),
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "object.bytes": "67108864",
    "partitioner": "xxh3",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.chunks": "1024",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "table.key.columns": "",
    "table.masks": "false",
    "table.publish.columns": "none",
}
LOWEST = {
    "compression.zstd.level": 1,
    "delete.retention.ms": 0,
    "file.delete.delay.ms": 0,
    "dead.rows.delay.ms": 0,
    "reader.hold.max.ms": 0,
    "max.compaction.lag.ms": 1,
    "max.message.bytes": 0,
    "message.timestamp.after.max.ms": 0,
    "message.timestamp.before.max.ms": 0,
    "min.compaction.lag.ms": 0,
    "object.bytes": 1,
    "retention.bytes": -1,
    "retention.ms": -1,
    "segment.bytes": 14,
    "segment.chunks": 1,
    "segment.jitter.ms": 0,
    "segment.ms": 1,
    "table.publish.interval.ms": 0,
}


def config(**overrides) -> LogConfig:
    names = {name.replace(".", "_"): name for name in DEFINITIONS}
    return LogConfig.from_overrides(parse_overrides({names[k]: v for k, v in overrides.items()}))


def refusal(given_configs) -> str:
    with pytest.raises(InvalidInputError) as caught:
        parse_overrides(given_configs)
    return str(caught.value)


def test_the_defaults_are_these():
    """Kafka's, except for cleanup.policy (S31), file.delete.delay.ms (S27) and clog's own."""
    assert LogConfig.from_overrides({}).as_dict() == DEFAULTS


def test_no_two_definitions_share_a_name():
    """A broker's name is not a topic's, and no meaningless one is defined."""
    names = [*DEFINITIONS, *BROKER_NAMES, *POINTLESS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", LOWEST)
def test_an_integer_is_bounded_below(name):
    """S43: the lowest value is accepted, one less is refused with name, value and range."""
    low = LOWEST[name]
    assert parse_overrides({name: low}) == {name: str(low)}
    message = refusal({name: low - 1})
    assert f"{name}={low - 1}" in message
    assert f"from {low} to" in message


@pytest.mark.parametrize("name", LOWEST)
def test_an_integer_is_bounded_above(name):
    """64 bits for times and sizes of segments, 32 where Kafka has an int, zstd's highest level."""
    high = DEFINITIONS[name].kind.high
    assert high == 22 or high in {LONG_MAX, 2147483647}
    assert parse_overrides({name: high}) == {name: str(high)}
    assert f"to {high}" in refusal({name: high + 1})


def test_every_integer_is_listed_here():
    """So that the two tests above leave none out."""
    assert {n for n, d in DEFINITIONS.items() if isinstance(d.kind, Integer)} == set(LOWEST)


@pytest.mark.parametrize("value", [100, "100", " 100 ", "+100", 100.0, np.int64(100)])
def test_integers_come_in_many_forms(value):
    """And are stored in one form."""
    assert parse_overrides({"segment.bytes": value}) == {"segment.bytes": "100"}


@pytest.mark.parametrize(
    "value", ["7d", "1_000", "1e3", "", "٣", 1.5, True, None, b"100", float("inf")]
)
def test_what_is_no_integer_is_refused(value):
    """S43: never guessed at."""
    assert "integers from 14" in refusal({"segment.bytes": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.0"), (-0.0, "0.0"), (1, "1.0"), ("0.25", "0.25"), (0.5, "0.5"), ("1e-1", "0.1")],
)
def test_the_dirty_ratio_is_a_number_from_0_to_1(value, text):
    """S14; both ends are allowed."""
    assert parse_overrides({"min.cleanable.dirty.ratio": value}) == {
        "min.cleanable.dirty.ratio": text
    }


@pytest.mark.parametrize("value", [-0.1, 1.1, "nan", float("nan"), "half", True, None])
def test_other_dirty_ratios_are_refused(value):
    """S43."""
    assert "numbers from 0 to 1" in refusal({"min.cleanable.dirty.ratio": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("compact", "compact"),
        ("delete,compact", "compact,delete"),
        (" Compact , DELETE ", "compact,delete"),
        ("compact,compact", "compact"),
        ("", ""),
        ("  ", ""),
        (["delete"], "delete"),
        (frozenset(), ""),
    ],
)
def test_a_cleanup_policy_is_any_set_of_the_two(value, text):
    """S31: in any order and case; empty keeps everything."""
    assert parse_overrides({"cleanup.policy": value}) == {"cleanup.policy": text}


@pytest.mark.parametrize("value", ["compact,,delete", "compact delete", "none", 1, None])
def test_other_cleanup_policies_are_refused(value):
    """S31, S43."""
    assert "compact, delete" in refusal({"cleanup.policy": value})


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [
        ("compact", True, False),
        ("delete", False, True),
        ("compact,delete", True, True),
        ("", False, False),
    ],
)
def test_what_a_policy_means(policy, compact, delete):
    """S31."""
    assert config(cleanup_policy=policy).compact is compact
    assert config(cleanup_policy=policy).delete is delete


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("message.timestamp.type", "logappendtime", "LogAppendTime"),
        ("compression.type", "NONE", "none"),
        ("partitioner", "murmur2", "murmur2"),
    ],
)
def test_a_choice_is_stored_in_its_own_spelling(name, value, text):
    """Whatever case it was given in."""
    assert parse_overrides({name: value}) == {name: text}
    assert f"{name}=" in refusal({name: "other"})
    assert text in refusal({name: "other"})


def test_names_keep_their_order():
    """They are chosen by others: the case is kept, and each is there once."""
    assert parse_overrides({"table.key.columns": " b, A"}) == {"table.key.columns": "b,A"}
    for wrong in ("a,,b", "a,a", ["a,b"], 1):
        assert "names, each once" in refusal({"table.key.columns": wrong})


def test_log_append_time():
    """S9."""
    assert not config().log_append_time
    assert config(message_timestamp_type="LogAppendTime").log_append_time


@pytest.mark.parametrize(
    ("policy", "segment_ms", "lag_ms", "effective_ms"),
    [
        ("compact", 1000, 500, 500),
        ("compact", 500, 1000, 500),
        ("compact,delete", 1000, 500, 500),
        ("delete", 1000, 500, 1000),
        ("", 1000, 500, 1000),
    ],
)
def test_the_effective_segment_ms(policy, segment_ms, lag_ms, effective_ms):
    """S7: min(segment.ms, max.compaction.lag.ms) with compaction, else segment.ms."""
    made = config(cleanup_policy=policy, segment_ms=segment_ms, max_compaction_lag_ms=lag_ms)
    assert made.effective_segment_ms == effective_ms


def test_the_lags_must_not_cross():
    """S43: equal is allowed; above is refused with both numbers, however they are combined."""
    assert config(min_compaction_lag_ms=5, max_compaction_lag_ms=5).min_compaction_lag_ms == 5
    apart = parse_overrides({"min.compaction.lag.ms": 6})
    with pytest.raises(InvalidInputError, match=r"min\S+=6 is above max\S+=5"):
        LogConfig.from_overrides({**apart, "max.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("retention_ms", "retention.ms"),
        ("retentionMs", "retention.ms"),
        ("segment.byte", "segment.bytes"),
        ("minCompactionLag", "min.compaction.lag.ms"),
        ("cleanup.polcy", "cleanup.policy"),
        ("log.segment.byte", "segment.bytes"),
        ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
        ("message.max.bytes", "max.message.bytes"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, meant):
    """S43, S45: misspelled ones and those of brokers."""
    assert f'unknown config "{name}"' in refusal({name: "1"})
    assert f"did you mean {meant}?" in refusal({name: "1"})


@pytest.mark.parametrize(
    ("name", "value", "converted"),
    [
        ("log.retention.hours", 168, "retention.ms? its unit is ms: 168 x 3600000 = 604800000"),
        ("log.retention.minutes", "2", "retention.ms? its unit is ms: 2 x 60000 = 120000"),
        ("log.roll.hours", "week", "segment.ms? its unit is ms: multiply by 3600000"),
        ("log.retention.hours", -1, "retention.ms? its unit is ms: multiply by 3600000"),
    ],
)
def test_a_brokers_name_in_another_unit_is_converted(name, value, converted):
    """S45."""
    assert refusal({name: value}).endswith(converted)


def test_a_name_that_resembles_none_gets_them_all():
    """Better than a wild guess."""
    message = refusal({"foo": 1})
    assert "did you mean" not in message
    assert all(name in message for name in DEFINITIONS)


@pytest.mark.parametrize("name", POINTLESS)
def test_a_config_that_means_nothing_here_is_named_so(name):
    """For topic configs copied from Kafka: the remedy is to leave it out."""
    assert refusal({name: 1}).endswith("leave it out")


def test_a_long_value_is_cut():
    """A message stays readable."""
    assert len(refusal({"segment.ms": "9" * 10_000})) < 300


def test_one_wrong_config_refuses_them_all():
    """Nothing is applied in part."""
    refusal({"segment.ms": 5, "segment.bytes": 13})


def test_a_stored_override_is_checked_as_well():
    """The contents of the head are not trusted more than a caller's input."""
    with pytest.raises(InvalidInputError, match=r"segment\.bytes"):
        LogConfig.from_overrides({"segment.bytes": "13"})
    with pytest.raises(InvalidInputError, match=r"did you mean segment\.bytes"):
        LogConfig.from_overrides({"segmentbytes": "100"})


def test_a_config_cannot_be_changed():
    """S42: another set of overrides makes another one."""
    with pytest.raises(FrozenInstanceError):
        config().segment_ms = 1


VALUES = st.fixed_dictionaries(
    {},
    optional={
        name: st.integers(low, DEFINITIONS[name].kind.high)
        for name, low in LOWEST.items()
        if "compaction.lag" not in name
    }
    | {
        "min.cleanable.dirty.ratio": st.floats(0, 1),
        "cleanup.policy": st.sets(st.sampled_from(["compact", "delete"])),
        "compression.type": st.sampled_from(["zstd", "lz4", "snappy", "none"]),
        "partitioner": st.sampled_from(["xxh3", "murmur2"]),
        "table.key.columns": st.sampled_from([(), ("id",), ("a", "B")]),
    },
)


@given(VALUES)
def test_what_is_given_is_what_holds(values):
    """Canonical strings are a fixed point, and the effective configs contain every override."""
    overrides = parse_overrides(values)
    assert parse_overrides(overrides) == overrides
    made = LogConfig.from_overrides(overrides)
    assert made.as_dict() == {**DEFAULTS, **overrides}
    assert LogConfig.from_overrides(made.as_dict()) == made
    for name, value in values.items():
        assert getattr(made, name.replace(".", "_")) == value

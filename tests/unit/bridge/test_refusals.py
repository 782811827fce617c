"""Records that a topic refuses are found by what it demands; no broker is contacted."""

import pyarrow as pa
import pytest

from clog.bridge.sending import refused
from clog.bridge.topic import Refusal
from clog.storage.objects.records import of_headers

NOW_MS = 1_000_000


def records(*rows):
    """Records of (key, value, ms, headers)."""
    keys, values, times, headers = zip(*rows, strict=True)
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([1000 * ms for ms in times], pa.timestamp("us", "UTC")),
            "headers": of_headers(headers),
        }
    )


FINE = (b"k", b"v", NOW_MS, None)


@pytest.mark.parametrize(
    ("refusal", "bad", "limits", "told"),
    [
        (
            Refusal.TIME,
            (b"k", b"v", NOW_MS - 9000, None),
            {"message.timestamp.before.max.ms": "8999"},
            "9 s behind the clock, more than message.timestamp.before.max.ms=8999",
        ),
        (
            Refusal.TIME,
            (b"k", b"v", NOW_MS + 9000, None),
            {"message.timestamp.before.max.ms": "9000", "message.timestamp.after.max.ms": "8999"},
            "9 s ahead of the clock, more than message.timestamp.after.max.ms=8999",
        ),
        (
            Refusal.SIZE,
            (None, b"v", NOW_MS, [(b"name", b"123456")]),
            {"max.message.bytes": "7"},
            "has 11 bytes of key, value and headers, as too large for max.message.bytes=7",
        ),
        (Refusal.SIZE, (b"kkk", None, NOW_MS, None), {}, "as too large for max.message.bytes"),
        (
            Refusal.RECORD,
            (None, b"v", NOW_MS, None),
            {"cleanup.policy": "compact,delete"},
            "it has no key, which cleanup.policy=compact,delete requires",
        ),
        (Refusal.RECORD, (None, b"v", NOW_MS, None), {}, "which cleanup.policy requires"),
    ],
)
def test_the_record_is_told_with_the_limit(refusal, bad, limits, told):
    """Also where the client may not see the topic's configs, if the record tells it."""
    which, why, remedy = refused(refusal, records(FINE, bad, FINE), limits, NOW_MS)
    assert which == 1
    assert why.endswith(told)
    assert remedy


@pytest.mark.parametrize(
    ("refusal", "limits"),
    [
        (Refusal.TIME, {}),
        (Refusal.TIME, {"message.timestamp.after.max.ms": "0"}),
        (Refusal.RECORD, {"cleanup.policy": "delete"}),
    ],
)
def test_who_is_not_known_to_be_to_blame_is_not_blamed(refusal, limits):
    """Clocks differ, and brokers may have checks of their own."""
    which, why, remedy = refused(refusal, records(FINE, FINE), limits, NOW_MS)
    assert which is None
    assert why
    assert remedy

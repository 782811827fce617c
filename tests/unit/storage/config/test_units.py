"""`units`: times and sizes as people write them, in configs and options."""

import pytest

from clog.storage.config import units
from clog.storage.config.log_config import DEFINITIONS, LogConfig, parse_overrides
from clog.storage.config.units import LONG_MAX
from clog.storage.errors import InvalidInputError


@pytest.mark.parametrize(
    ("name", "given", "stored"),
    [
        ("segment.ms", "1d", "86400000"),
        ("segment.ms", "1.5 hours", "5400000"),
        ("segment.ms", " 10S ", "10000"),
        ("segment.ms", "2w", "1209600000"),
        ("segment.bytes", "64m", str(64 << 20)),
        ("segment.bytes", "1.5KiB", "1536"),
        ("segment.bytes", "1TB", str(1 << 40)),
        ("retention.bytes", "unlimited", "-1"),
        ("retention.ms", "Unlimited", "-1"),
        ("max.compaction.lag.ms", "unlimited", str(LONG_MAX)),
        ("max.message.bytes", "1048588", "1048588"),
        ("max.message.bytes", "unlimited", str((1 << 31) - 1)),
    ],
)
def test_a_config_takes_units(name, given, stored):
    """The number is stored in the config's own unit: older readers know it too."""
    assert parse_overrides({name: given}) == {name: stored}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(("segment.ms", v) for v in ("1x", "1mib", "-1d", "0.3ms", "d", "", "1d 2h", "0s")),
        *(("segment.bytes", v) for v in ("1d", "0.5", "0k", "m", "9e")),
        ("segment.chunks", "1k"),
        ("min.cleanable.dirty.ratio", "50%"),
        ("segment.ms", "300000000000d"),
    ],
)
def test_what_is_no_quantity_is_refused(name, given):
    """S43: the error lists the existing units, if the config accepts any."""
    with pytest.raises(InvalidInputError) as caught:
        parse_overrides({name: given})
    assert f'config {name}="{given}" is refused' in str(caught.value)
    assert ("1d" in str(caught.value).split("allowed")[1]) == name.endswith(".ms")


@pytest.mark.parametrize("name", [n for n in DEFINITIONS if n.endswith((".ms", ".bytes"))])
def test_what_is_shown_can_be_given(name):
    """Each default, each bound, and odd numbers in between."""
    kind = DEFINITIONS[name].kind
    high = -1 if kind.low == -1 else kind.high  # Both mean that there is no limit.
    numbers = {kind.low, high, int(LogConfig.from_overrides({}).as_dict()[name])}
    for number in numbers | {n for n in (1234567, 90_000, 65_536) if kind.low <= n <= kind.high}:
        shown = units.config_text(name, str(number))
        assert parse_overrides({name: shown}) == {name: str(number)}, shown


def test_moments():
    """ISO 8601 with any zone, a day, or milliseconds."""
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00", "2026-01-31 12:00"):
        assert units.time_ms(text) == 1_769_860_800_000
    assert units.time_ms("1769860800000") == 1_769_860_800_000
    assert units.time_ms("1969-12-31T23:59:59.9999Z") == -1
    with pytest.raises(ValueError, match="ISO 8601"):
        units.time_ms("soon")

"""Bars and the page of `clog describe`, from values only."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from clog.cli.describe import PARTS, bar, cells, description, legend, next_action, part_bytes

SEALED = "segment.bytes=1GiB or segment.ms=7d"
CONFIG = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "60000",
    "max.compaction.lag.ms": "1000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
}


def detail(**changes):
    """A partition of 100 bytes: 40 clean, 30 cleanable, 20 uncleanable, 10 active."""
    return {
        "partition": 0,
        "log_start_offset": 0,
        "end_offset": 100,
        "stable_offset": 100,
        "first_dirty_offset": 40,
        "covered_offset": None,
        "first_uncleanable_offset": 70,
        "active_base_offset": 90,
        "segments": 4,
        "records": 100,
        "dead_rows": 0,
        "tombstones": 3,
        "size_bytes": 100,
        "clean_bytes": 40,
        "cleanable_bytes": 30,
        "active_bytes": 10,
        "dirty_ratio": 30 / 70,
        "delete_horizon_ms": None,
        "delete_retention_offset": None,
        "delete_retention_bytes": None,
        "markers": 0,
        "uncleanable": None,
        "retention_held": None,
    } | changes


def log(**changes):
    return {
        "url": "/logs/orders",
        "version": 7,
        "committed_ms": 1_000,
        "created_ms": 0,
        "oldest_readable_version": 2,
        "snapshot_version": None,
        "partitions": 1,
        "partitioner": "xxh3",
        "schema": {"key": "binary", "value": "binary"},
        "config": CONFIG,
        "config_overrides": {"min.compaction.lag.ms": "60000"},
        "holds": {},
        "sources": {},
        "kept": [],
        "members": [],
        "cuts": [],
        "erasures": {},
        "transactions": [],
        "views": [],
        "objects": 3,
        "object_bytes": 2048,
        "released_bytes": 0,
        "writers": 1,
        "committers": 1,
        "waits": None,
        "takes_offsets": False,
        "partition_details": [detail()],
    } | changes


def page(width=80, *, colour=False, everything=False, now_ms=61_000, **changes):
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, highlight=False, markup=False
    )
    ascii_only = changes.pop("ascii_only", False)
    described = log(**changes)
    actions = {d["partition"]: "nothing to do" for d in described["partition_details"]}
    defaults = CONFIG | {"min.compaction.lag.ms": "0"}
    drawn = {"ascii_only": ascii_only, "everything": everything}
    console.print(description(described, defaults, actions, now_ms=now_ms, width=width, **drawn))
    return console.file.getvalue()


@given(st.lists(st.integers(0, 1 << 60), min_size=4, max_size=4), st.integers(4, 200))
def test_cells_add_up_and_hide_nothing(amounts, width):
    """A bar has its full width, and every part that exists has a cell."""
    found = cells(amounts, width)
    assert sum(found) == (width if any(amounts) else 0)
    assert [n > 0 for n in found] == [a > 0 for a in amounts]


@given(st.lists(st.integers(0, 1000), min_size=4, max_size=4), st.integers(4, 200))
def test_cells_are_in_proportion(amounts, width):
    """No part is off by more than the cells that keep small parts visible, plus one for
    rounding.
    """
    total = sum(amounts) or 1
    for amount, found in zip(amounts, cells(amounts, width), strict=True):
        assert abs(found - amount * width / total) <= len(amounts)


def test_a_bar_shows_the_four_parts_in_order():
    """Clean, cleanable, uncleanable, active: each in proportion to its bytes (S10, S11, S12)."""
    assert part_bytes(detail()) == (40, 30, 20, 10)
    assert bar(detail(), 20).plain == "████████▓▓▓▓▓▓▒▒▒▒░░"
    assert bar(detail(), 20, ascii_only=True).plain == "########++++++----.."


def test_a_bar_shows_the_delete_retention_point():
    """The mark is at the start of the first kept tombstone's segment, also at the very
    beginning.
    """
    assert bar(detail(delete_retention_bytes=20), 20).plain == "████│███▓▓▓▓▓▓▒▒▒▒░░"
    assert bar(detail(delete_retention_bytes=0), 20).plain.startswith("│███████▓")


def test_an_empty_partition_has_an_empty_bar():
    """Nothing is drawn where there are no bytes."""
    empty = detail(size_bytes=0, clean_bytes=0, cleanable_bytes=0, active_bytes=0)
    assert bar(empty, 10).plain == "·" * 10


def test_the_legend_names_every_part():
    """Glyph and name of each part, also in ASCII."""
    for ascii_only in (False, True):
        text = legend(ascii_only=ascii_only).plain
        for part in PARTS:
            glyph = part.ascii_glyph if ascii_only else part.glyph
            assert f"{glyph}{glyph} {part.name}" in text


def test_the_page_fits_80_columns_without_colour():
    """No escape code goes to a pipe, and no line is longer than the page is wide."""
    described = detail(
        log_start_offset=10**12,
        end_offset=10**13,
        stable_offset=10**13,
        delete_retention_offset=10**12,
        delete_retention_bytes=10,
        delete_horizon_ms=90_061_000,
    )
    text = page(partition_details=[described])
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert "start 1000000000000, first dirty 40, active 90, end 10000000000000" in text
    assert "earliest delete horizon in 1 d 1 h" in text.replace("\n    ", " ")


def test_the_page_fits_40_columns():
    """Bars are printed above the sizes, and each config has its own line."""
    lines = page(width=40, everything=True).splitlines()
    assert max(map(len, lines)) <= 40
    assert any("cleanup.policy=compact" in line for line in lines)


def test_the_page_says_how_far_masks_go():
    """For a log that has any; for another nothing is printed."""
    text = page(partition_details=[detail(covered_offset=90)])
    assert "first dirty 40, masks to 90, active 90" in text
    assert "masks" not in page(partition_details=[detail()])


def test_the_page_has_colours_on_a_terminal():
    """Parts differ in colour: green is clean."""
    assert "\x1b[32m" in page(colour=True)


def test_the_page_is_plain_ascii_where_it_must_be():
    """A terminal that only has ASCII gets nothing else."""
    assert page(ascii_only=True).isascii()


def test_configs_that_were_set_stand_out():
    """They have the default beside them; the others are counted, and follow with --all."""
    lines = page().splitlines()
    at = lines.index(next(line for line in lines if line.startswith("Configuration")))
    assert lines[at + 2].split() == ["min.compaction.lag.ms", "1min", "set;", "default", "0"]
    assert lines[at + 3] == f"{len(CONFIG) - 1} configs at the default; --all shows them"
    lines = page(everything=True).splitlines()
    at = lines.index(next(line for line in lines if line.startswith("Configuration")))
    assert lines[at + 2].split() == ["min.compaction.lag.ms", "1min", "set;", "default", "0"]
    assert lines[at + 3].split() == ["cleanup.policy", "compact"]


def test_what_is_as_in_every_log_is_asked_for():
    """Partitions without records, zeros and defaults: a small log fits a small screen."""
    three = [detail(partition=p) for p in range(3)]
    empty = [detail(partition=p, end_offset=0) for p in (4, 5, 6, 8)]
    text = page(partition_details=[*three, *empty])
    assert "partitions 4-6, 8 without records" in text
    assert "newest snapshot" not in text
    text = page(partition_details=[*three, *empty], everything=True)
    assert "without records" not in text
    assert "newest snapshot" in text


def test_numbers_of_partitions_are_below_each_other():
    """Sizes, records and offsets, as wide as the widest."""
    two = [detail(), detail(partition=1, records=12_345, size_bytes=3 << 30, end_offset=54_321)]
    two[1]["stable_offset"] = 54_321
    lines = page(partition_details=two, width=120).splitlines()
    one, other = (line for line in lines if line.endswith(" records"))
    assert len(one) == len(other)
    one, other = (line for line in lines if "dirty ratio" in line)
    assert one.index("dirty ratio") == other.index("dirty ratio")


def test_the_page_ends_with_what_one_would_type_next():
    """By the state of the log: nothing is there, something is due, or all is well."""
    assert "next: clog produce " in page(partition_details=[detail(end_offset=0)])
    assert page().rstrip().splitlines()[-1].startswith("next: clog consume ")


def test_the_page_has_totals():
    """Sums over the partitions, and the age of the last commit."""
    two = [detail(), detail(partition=1)]
    text = page(partition_details=two, partitions=2, everything=True)
    assert "records                    200" in text
    assert "last commit                1 min ago" in text
    assert "readable versions          2 to 7" in text


@pytest.mark.parametrize(
    ("reason", "changes", "config", "expected"),
    [
        ("dirty", {"dirty_ratio": 0.75}, {}, "clean now: dirty ratio 0.75 > 0.5"),
        ("overdue", {}, {}, "clean now: older than max.compaction.lag.ms=1s"),
        ("tombstones", {}, {}, "clean now: tombstones past their delete horizon"),
        (None, {}, {}, "clean when the dirty ratio is above 0.5 (now 0.43)"),
        (
            None,
            {"cleanable_bytes": 0},
            {},
            "clean when older than min.compaction.lag.ms=1min",
        ),
        (
            None,
            {"cleanable_bytes": 0, "first_uncleanable_offset": 90},
            {},
            f"clean after the active segment has been sealed, at {SEALED}",
        ),
        (
            None,
            {"cleanable_bytes": 0, "stable_offset": 75},
            {},
            "nothing yet: records from offset 75 on wait for the end of a transaction",
        ),
        (
            None,
            {"cleanable_bytes": 0, "first_uncleanable_offset": 90, "active_bytes": 0},
            {},
            "nothing to do",
        ),
        (None, {}, {"cleanup.policy": "delete"}, "retention"),
        (None, {}, {"cleanup.policy": ""}, "nothing: cleanup.policy keeps everything"),
        (
            None,
            {"uncleanable": "checksum mismatch"},
            {},
            "clean again after back-off; the last pass failed: checksum mismatch",
        ),
    ],
)
def test_the_next_action_has_its_reason(reason, changes, config, expected):
    """What maintenance will do follows from S11, S14, S16, S28, S31, and is printed with
    numbers.
    """
    assert next_action(detail(**changes), CONFIG | config, reason) == expected

"""Features: additions to the format that a log announces before it uses them (FORMAT.md §0).

A name stands in one of two lists of the head. Readers and writers must know those in ``read``,
writers those in ``write`` too. Both lists only grow; a log without a feature has nothing of it.
Whoever reads or writes refuses what it does not know (`head`).

`FEATURES` holds every name that FORMAT.md specifies, built or not. What is built by nobody yet has
its name here, so that a log that has it is refused by this name, and nobody uses it for something
else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DEAD_ROWS = "dead-rows"
TRANSACTIONS = "transactions"
UNDECIDED_RECORDS = "undecided-records"
TYPED_COLUMNS = "typed-columns"
SUPERSEDED_ROWS = "superseded-rows"
PUBLICATIONS = "publications"
ORDER_VALUES = "order-values"
GIVEN_OFFSETS = "given-offsets"
ERASURES = "erasures"
READER_HOLDS = "reader-holds"
TYPED_KEYS = "typed-keys"
ROW_TEXTS = "row-texts"


@dataclass(frozen=True, slots=True)
class FeatureNames:
    """What a log demands: of readers and writers, and of writers alone."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.read or name in self.write

    def with_added(self, more: "FeatureNames") -> "FeatureNames":
        """Returns these and ``more``; a name that is there already stays where it is."""
        return FeatureNames(
            (*self.read, *(name for name in more.read if name not in self)),
            (*self.write, *(name for name in more.write if name not in self)),
        )


NO_FEATURES = FeatureNames()


@dataclass(frozen=True, slots=True)
class Feature:
    """One addition to the format.

    Attributes:
        name: as in the head.
        section: of FORMAT.md, without the sign.
        summary: what it is for, in a line.
        of_readers: readers must know it, too; else only writers.
        is_built: whether this clog knows it; else it is specified and nothing more.
        is_default: new logs have it.
        at_creation: a log has it from its first version on or never.
    """

    name: str
    section: str
    summary: str
    of_readers: bool
    is_built: bool = False
    is_default: bool = False
    at_creation: bool = False


FEATURES = {
    feature.name: feature
    for feature in (
        Feature(
            DEAD_ROWS,
            "5.4",
            "a pass may mark dead rows in a bitmap, and rewrite them later",
            of_readers=True,
            is_built=True,
            is_default=True,
        ),
        Feature(
            TRANSACTIONS,
            "11.1",
            "ids under which one holder commits; a log gets it when the first id is taken up",
            of_readers=False,
            is_built=True,
        ),
        Feature(
            UNDECIDED_RECORDS,
            "11.2",
            "records that are undecided for a time, and markers",
            of_readers=True,
            is_built=True,
        ),
        Feature(
            TYPED_COLUMNS,
            "12",
            "keys and values as columns of Arrow types",
            of_readers=True,
            is_built=True,
            at_creation=True,
        ),
        Feature(
            SUPERSEDED_ROWS,
            "13",
            "bitmaps of the rows that no table shows: tables without comparing keys",
            of_readers=False,
            is_built=True,
        ),
        Feature(
            PUBLICATIONS,
            "14",
            "versions that published views of the table still need",
            of_readers=False,
            is_built=True,
        ),
        Feature(
            ORDER_VALUES,
            "15",
            "the record with the highest timestamp or header wins",
            of_readers=True,
        ),
        Feature(GIVEN_OFFSETS, "16", "appends that name their offsets", of_readers=True),
        Feature(
            ERASURES,
            "17",
            "removal of all bytes of some keys, with a receipt",
            of_readers=False,
        ),
        Feature(
            READER_HOLDS,
            "18",
            "named readers that hold back tombstones and versions for a time",
            of_readers=False,
            is_built=True,
        ),
        Feature(
            TYPED_KEYS,
            "12.3",
            "keys that are dates, decimals or truth values, or have such fields",
            of_readers=True,
            is_built=True,
            at_creation=True,
        ),
        Feature(
            ROW_TEXTS,
            "19",
            "by which rules upsert makes texts of rows; a log of bytes gets it with its first rows",
            of_readers=False,
            is_built=True,
        ),
    )
}


def lists_of(features: Sequence[Feature]) -> FeatureNames:
    """Returns the names of the features, in the lists to which they belong."""
    return FeatureNames(
        tuple(f.name for f in features if f.of_readers),
        tuple(f.name for f in features if not f.of_readers),
    )


NEW_LOG_FEATURES = lists_of([f for f in FEATURES.values() if f.is_default])
"""What a new log demands."""


def unknown(names: tuple[str, ...]) -> list[str]:
    """Returns the names that this clog does not know, or knows and has not built."""
    return sorted(n for n in names if n not in FEATURES or not FEATURES[n].is_built)

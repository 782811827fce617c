"""The formats in which a log's table can be published, one row each, with the facts that are known
about a view without reading it. `publications` has a module for each, which writes and reads it.
"""

import re
from dataclasses import dataclass

UUID = "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))


@dataclass(frozen=True, slots=True)
class ViewFormat:
    """One row.

    Attributes:
        name: its name in configs, pins and paths.
        title: the term for such a view in messages.
        folder: the folder of its versions at the log's root, with its slash.
        versions: their paths, with the number as the first group.
        beside: the paths of other files in that folder.
        files: names of the files that a version has in the log's folder.
        stray_beginnings: the beginnings of the names that other writers of such tables use.
    """

    name: str
    title: str
    folder: str
    versions: re.Pattern[str]
    beside: re.Pattern[str]
    files: re.Pattern[str]
    stray_beginnings: tuple[str, ...]


DELTA = ViewFormat(
    name="delta",
    title="a Delta table",
    folder="_delta_log/",
    versions=re.compile(r"_delta_log/(\d{20})\.json"),
    beside=re.compile(r"_delta_log/(?:_last_checkpoint|(\d{20})\.checkpoint\.parquet)"),
    files=re.compile(rf"deletion_vector_{UUID}\.bin"),
    stray_beginnings=("part-", "deletion_vector_"),
)
ICEBERG = ViewFormat(
    name="iceberg",
    title="an Iceberg table",
    folder="metadata/",
    versions=re.compile(r"metadata/v(\d{1,18})\.metadata\.json"),
    beside=re.compile(r"metadata/version-hint\.text"),
    files=re.compile(r"[0-9a-f]{32}(?:-(?:data|deletes|list)\.avro|\.puffin)"),
    stray_beginnings=("data/", "metadata/snap-"),
)
FORMATS = {each.name: each for each in (DELTA, ICEBERG)}
FORMAT_NAMES = "|".join(FORMATS)

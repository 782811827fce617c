"""The formats in which a log's table can be published, a row each: what is known of a view without
looking at it. `publications` has a module for each, which knows how it is written and read.
"""

import re
from dataclasses import dataclass

UUID = "-".join(f"[0-9a-f]{{{digits}}}" for digits in (8, 4, 4, 4, 12))


@dataclass(frozen=True, slots=True)
class ViewFormat:
    """One row.

    Attributes:
        name: in configs, pins and paths.
        title: what such a view is, in messages.
        folder: where its versions stand at the log's root, with its slash.
        versions: their paths, with the number as the first group; ``beside`` what stands there,
            too.
        files: names of the files that a version has in the log's folder.
        stray_beginnings: how names begin that other writers of such tables give to their files.
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

"""All records of few keys that are still there, in offset order: what happened to a key."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from clog.storage.commit.versions import file_missing
from clog.storage.format.manifest import Manifest
from clog.storage.numpy_arrays import of_bytes
from clog.storage.objects.python_keys import asked_keys
from clog.storage.read.key_lookup import of_keys, pieces_of_keys
from clog.storage.read.scan import plan_range, read_pieces
from clog.storage.store.base import Store


def records_of_keys(
    store: Store,
    manifest: Manifest,
    ranges: Mapping[int, tuple[int, int]],
    keys: Sequence[Any],
) -> Iterator[pa.RecordBatch]:
    """Yields the records of these keys in ranges of offsets, partition by partition, as batches of
    `read_schema`. Objects whose key index has none of the keys are not read.

    Raises:
        VersionExpiredError, CorruptionError: as `read_records`.
    """
    log = manifest.head.log
    asked = asked_keys(keys, log.schema)
    wanted = of_bytes(asked)
    try:
        for p, (start, end) in ranges.items():
            pieces = plan_range(manifest, p, start, end)
            for batch in read_pieces(
                store, list(pieces_of_keys(store, pieces, asked, log.key_seed))
            ):
                if (found := of_keys(batch, wanted)).num_rows:
                    yield found
    except FileNotFoundError as e:
        why, remedy = " while it was read", "read again"
        raise file_missing(store, manifest.version, e, why=why, remedy=remedy) from e

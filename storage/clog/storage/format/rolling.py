"""When an append rolls the active segment (S7). Pure.

Each chunk counts as one append to its partition. The active segment is sealed before a chunk when
it is not empty and

- its bytes + the chunk's would exceed ``segment.bytes``, or
- the chunk's largest timestamp − its first record's timestamp > effective ``segment.ms`` − its
  jitter, or
- it has ``segment.chunks`` chunks already (as Kafka's rolls when its index is full).
"""

from collections.abc import Callable, Sequence

from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import NONE, Chunk
from clog.storage.format.columns import PartitionColumns


def rolls_for(
    columns: PartitionColumns,
    chunks: Sequence[tuple[int, Chunk]],
    config: LogConfig,
    *,
    uniform: Callable[[], float],
) -> tuple[tuple[int, int, int], ...]:
    """Returns (partition, base, jitter_ms) of the chunks before which the active segment rolls."""
    size: dict[int, int] = {}
    count: dict[int, int] = {}
    first_ms: dict[int, int] = {}
    jitter: dict[int, int] = {}
    rolls = []
    for p, chunk in chunks:
        if p not in size:
            size[p], count[p] = columns.bytes[p], columns.chunks[p]
            first_ms[p], jitter[p] = columns.first_ms[p], columns.jitter_ms[p]
        waited_ms = chunk.max_timestamp_ms - first_ms[p]
        if count[p] and (
            size[p] + chunk.size_bytes > config.segment_bytes
            or waited_ms > config.effective_segment_ms - jitter[p]
            or count[p] >= config.segment_chunks
        ):
            size[p] = count[p] = 0
            first_ms[p] = NONE
            jitter[p] = new_jitter_ms(config, uniform=uniform)
            rolls.append((p, chunk.base, jitter[p]))
        if count[p] == 0:
            first_ms[p] = chunk.first_timestamp_ms
        size[p] += chunk.size_bytes
        count[p] += 1
    return tuple(rolls)


def new_jitter_ms(config: LogConfig, *, uniform: Callable[[], float]) -> int:
    """Returns the jitter of a new segment, drawn once: below min(``segment.jitter.ms``,
    ``segment.ms``).
    """
    return int(uniform() * min(config.segment_jitter_ms, config.segment_ms))

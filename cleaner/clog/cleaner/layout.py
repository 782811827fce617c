"""How chunks lie in their objects: what is worth rewriting for the layout's sake alone. Pure."""

from clog.storage.chunks import Chunk
from clog.storage.config import LogConfig

SMALL_SHARE = 8


def is_shared(chunk: Chunk) -> bool:
    """Whether the object holds other rows, too: then it lives as long as any of its chunks."""
    return chunk.rows != chunk.object.rows


def is_loose(chunk: Chunk, config: LogConfig) -> bool:
    """Whether the chunk shares its object, or is small: below 1/8 of ``object.bytes``."""
    return is_shared(chunk) or chunk.size_bytes < config.object_bytes // SMALL_SHARE

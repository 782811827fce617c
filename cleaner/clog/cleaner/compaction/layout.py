"""How chunks lie in their objects: what is worth rewriting for the layout's sake alone. Pure."""

from clog.storage.config.log_config import LogConfig
from clog.storage.format.chunks import Chunk

SMALL_SHARE = 8


def is_shared(chunk: Chunk) -> bool:
    """Tells whether the object holds other rows, too: then it lives as long as any of its
    chunks.
    """
    return chunk.rows != chunk.object.rows


def is_loose(chunk: Chunk, config: LogConfig) -> bool:
    """Tells whether the chunk shares its object, or is small: below 1/8 of ``object.bytes``."""
    return is_shared(chunk) or chunk.size_bytes < config.object_bytes // SMALL_SHARE

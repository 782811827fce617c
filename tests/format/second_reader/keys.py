"""Hashes of keys, partitioners and the key index (FORMAT.md §5.5, §5.6)."""

import struct

import numpy as np
import xxhash

from second_reader.documents import need

U32 = 0xFFFFFFFF


def key_hash(key: bytes, seed: str) -> int:
    """The upper 64 bits of the key's XXH3-128 with the log's seed."""
    return int(xxhash.xxh3_128_intdigest(key, seed=int(seed, 16)) >> 64)


def writer_hash(kind: str, writer: str, seed: str) -> str:
    """The hash of a writer, as 16 hex digits (§4)."""
    return f"{key_hash(kind.encode() + bytes(1) + writer.encode(), seed):016x}"


def murmur2(data: bytes) -> int:
    """MurmurHash2 as Kafka has it, an unsigned 32-bit integer."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = word * m & U32
        mixed = (mixed ^ mixed >> 24) * m & U32
        h = h * m & U32 ^ mixed
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * m & U32
    h = (h ^ h >> 13) * m & U32
    return h ^ h >> 15


def partition_of(key: bytes, partitioner: str, partitions: int) -> int:
    """The partition that the log's partitioner assigns to the bytes of a key (§5.6)."""
    if partitioner == "xxh3":
        return int(xxhash.xxh3_64_intdigest(key)) % partitions
    need(partitioner == "murmur2", "5.6", f"unknown partitioner {partitioner!r}")
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def index_blocks(index: bytes) -> list[tuple[int, set[int], int]] | None:
    """For each block its rows, the pairs of bucket and kept part it has, and the bits of a bucket.

    None is an index of another version, which is ignored.
    """
    need(len(index) >= 17, "5.5", "a key index of less than 17 bytes")
    need(xxhash.xxh3_128_digest(index[16:]) == index[:16], "5.5", "wrong checksum of the key index")
    if index[16] != 1:
        return None
    blocks = []
    at = 17
    while at < len(index):
        need(at + 9 <= len(index), "5.5", "a key index that ends in a block")
        rows, hashes, bits = struct.unpack_from("<IIB", index, at)
        need(
            bits <= 32 and at + 9 + (1 << bits) + 3 * hashes <= len(index),
            "5.5",
            "a block too long",
        )
        at += 9
        counts = np.frombuffer(index, np.uint8, 1 << bits, at)
        at += 1 << bits
        need(int(counts.sum()) == hashes, "5.5", "buckets that do not add up")
        high = np.frombuffer(index, "<u2", hashes, at).astype(np.uint64)
        low = np.frombuffer(index, np.uint8, hashes, at + 2 * hashes).astype(np.uint64)
        at += 3 * hashes
        buckets = np.repeat(np.arange(1 << bits, dtype=np.uint64), counts)
        kept = buckets << np.uint64(24) | high << np.uint64(8) | low
        need(bool((kept[1:] > kept[:-1]).all()), "5.5", "hashes out of order")
        blocks.append((rows, set(kept.tolist()), bits))
    return blocks


def kept_part(hashed: int, bits: int) -> int:
    """Bucket and kept part of a hash, as one number."""
    return hashed >> (64 - bits - 24)

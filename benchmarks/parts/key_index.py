"""Measures what could tell which blocks of rows may hold a key, and what reading the keys costs.

    python benchmarks/parts/key_index.py --keys 2000000 --dirty 100000

Each candidate is built for blocks of 131,072 distinct keys, then asked for one key and for all
dirty keys, none of which is there: a block that says "maybe" is read for nothing. The second table
is what a pass does without any of them: read the key column of an object, hash, ask the offset map.
Times
are of CPU, the least of three.
"""

import argparse
import time
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clog.cleaner.passes.offset_map import OffsetMap
from clog.storage.keys import key_index
from clog.storage.keys.hashing import hash_keys

BLOCK = 1 << 17
SALT = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    np.uint32,
)


class Bloom:
    """A split-block Bloom filter, Parquet's; in Parquet its hash has no seed."""

    def __init__(self, hashes, bits_a_key):
        self.words = np.zeros((max(1, len(hashes) * bits_a_key // 256), 8), np.uint32)
        block, masks = self._places(hashes)
        for word in range(8):
            np.bitwise_or.at(self.words[:, word], block, masks[:, word])

    def _places(self, hashes):
        block = ((hashes >> np.uint64(32)) * np.uint64(len(self.words))) >> np.uint64(32)
        bits = (hashes.astype(np.uint32)[:, None] * SALT) >> np.uint32(27)
        return block.astype(np.intp), np.uint32(1) << bits

    def nbytes(self):
        return self.words.nbytes

    def ask(self, hashes):
        block, masks = self._places(hashes)
        return ((self.words[block] & masks) == masks).all(axis=1)


class Sorted:
    """All 64 bits of the hashes in order, and the number of the row (4 bytes)."""

    def __init__(self, hashes):
        self.rows = np.argsort(hashes).astype(np.uint32)
        self.hashes = hashes[self.rows]

    def nbytes(self):
        return self.hashes.nbytes + self.rows.nbytes

    def ask(self, hashes):
        at = np.searchsorted(self.hashes, hashes)
        return self.hashes[np.minimum(at, len(self.hashes) - 1)] == hashes


class Quotient:
    """The key index as it is, or with another number of bits kept (sizes in whole bytes)."""

    def __init__(self, hashes):
        self.data = key_index.encode([(len(hashes), hashes)])
        self.index = key_index.decode(self.data)

    def nbytes(self):
        return len(self.data)

    def ask(self, hashes):
        return np.concatenate(list(self.index.asked(hashes)))[:, 0]


class Truncated(Quotient):
    """What the key index would say with other bits kept; size alone is computed, not made."""

    def __init__(self, hashes, kept_bits):
        super().__init__(hashes)
        self.kept = kept_bits
        self.shift = np.uint64(int(self.index.shifts[0]) + 24 - kept_bits)
        self.values = np.unique(hashes >> self.shift)

    def nbytes(self):
        return len(self.data) + len(self.values) * (self.kept - 24) // 8

    def ask(self, hashes):
        return np.isin(hashes >> self.shift, self.values)


CANDIDATES = {
    "Bloom, 11 bits": lambda hashes: Bloom(hashes, 11),
    "Bloom, 32 bits": lambda hashes: Bloom(hashes, 32),
    "64-bit hashes, rows": Sorted,
    "quotient, 16 bits": lambda hashes: Truncated(hashes, 16),
    "quotient, 24 bits": Quotient,
    "quotient, 32 bits": lambda hashes: Truncated(hashes, 32),
}


def timed(action, repeat=3):
    times = []
    for _ in range(repeat):
        started = time.process_time()
        result = action()
        times.append(time.process_time() - started)
    return min(times), result


def key_shapes(count):
    ids = np.random.default_rng(3).permutation(count)
    scattered = [int(i) * 0x9E3779B97F4A7C15F39CC060_5CEDC835 % (1 << 128) for i in ids]
    return {
        "user-%08d, spread": pa.array([b"user-%08d" % i for i in ids], pa.binary()),
        "user-%08d, in order": pa.array([b"user-%08d" % i for i in range(count)], pa.binary()),
        "8 random bytes": pa.array([i.to_bytes(16, "big")[:8] for i in scattered], pa.binary()),
        "UUID as text": pa.array([str(uuid.UUID(int=i)).encode() for i in scattered], pa.binary()),
    }


def measure_keys(count, dirty):
    print(f"\n{'keys':24}{'bytes a key':>12}{'read, hash, ask: M keys/s':>28}")
    asked = OffsetMap(memory_bytes=8 << 20)
    asked.put(np.stack((dirty, np.roll(dirty, 1)), axis=1), np.arange(len(dirty)))
    for name, keys in key_shapes(count).items():
        sink = pa.BufferOutputStream()
        table = pa.table({"key": keys.cast(pa.binary())})
        pq.write_table(
            table, sink, compression="zstd", use_dictionary=False, write_statistics=False
        )
        data = sink.getvalue()

        def judge(data=data):
            for batch in pq.ParquetFile(pa.BufferReader(data)).iter_batches(
                16384, use_threads=False
            ):
                asked.get(hash_keys(batch.column(0), seed=1))

        seconds, _ = timed(judge)
        print(f"{name:24}{data.size / count:12.1f}{count / seconds / 1e6:28.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--dirty", type=int, default=100_000)
    options = parser.parse_args()
    random = np.random.default_rng(1)
    count = max(1, options.keys // BLOCK)
    key_index.encode([(BLOCK, random.integers(0, 1 << 64, BLOCK, dtype=np.uint64))])  # warms up
    blocks = [random.integers(0, 1 << 64, BLOCK, dtype=np.uint64) for _ in range(count)]
    dirty = random.integers(0, 1 << 64, options.dirty, dtype=np.uint64)
    print(f"{count} blocks of {BLOCK} keys, {options.dirty} dirty keys elsewhere")
    print(f"{'':24}{'':>12}{'built':>10}{'all asked':>11}{'one asked':>11}{'blocks read':>13}")
    print(
        f"{'':24}{'bytes a key':>12}{'M keys/s':>10}{'ms/block':>11}{'us/block':>11}{'in vain':>13}"
    )
    for name, make in CANDIDATES.items():
        built, first = timed(lambda make=make: make(blocks[0]))
        made = [first, *map(make, blocks[1:])]
        assert first.ask(blocks[0][:1000]).all(), "what is there must be found"
        every, _ = timed(lambda first=first: first.ask(dirty))
        one, _ = timed(lambda first=first: [first.ask(dirty[i : i + 1]) for i in range(100)])
        wrong = sum(bool(m.ask(dirty).any()) for m in made)
        size = sum(m.nbytes() for m in made) / count / BLOCK
        print(
            f"{name:24}{size:12.2f}{BLOCK / built / 1e6:10.1f}{every * 1e3:11.1f}"
            f"{one * 1e4:11.0f}{wrong:10}/{count}"
        )
    measure_keys(min(options.keys, 1_000_000), dirty)


if __name__ == "__main__":
    main()

"""128 bits that tell the keys of one read apart: what the table view compares (decision 0008).

Keys of 4 to 16 bytes, which most are, are not hashed: each is two words that overlap, and the two
and their number of bytes say which key it is. All that they need is to be *spread*, in steps that
can be undone:

    last'  = last ^ b
    first' = (first ^ a) * p + last' * q    (mod 2^64)

*a* and *b* are secrets of that length, *p* and *q* odd ones of all; they come from the seed. So

1. different keys of one length have different words, always;
2. of different lengths, or with any other key, which is hashed (`hashing`), they are the same with
   a chance of 2^-128, as hashes are (S19);
3. any two keys share the upper n bits of ``first'`` with a chance of about 2^-n, so they serve to
   sort and to look up by, and no keys that share them can be prepared.

That is a tenth of the time of a hash. Nothing of it is stored: another version may do otherwise.
"""

from functools import lru_cache
from hashlib import shake_256

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from clog.storage.keys.hashing import contents, hash_keys
from clog.storage.keys.key_bytes import key_bytes
from clog.storage.keys.short_keys import LENGTH_MAX, LENGTH_MIN, both_ends
from clog.storage.numpy_arrays import to_arrow

Fingerprints = NDArray[np.uint64]
_Numbers = NDArray[np.int64]


def fingerprints_of(keys: pa.Array, *, seed: int) -> Fingerprints:
    """Returns the words of each key: an ``(n, 2)`` array, ``first'`` and ``last'``.

    Args:
        keys: of any type that keys have, without nulls.
        seed: in ``[0, 2**64)``.
    """
    words = np.empty((len(keys), 2), np.uint64)
    if not len(keys):
        return words
    keys = key_bytes(keys)
    data, ends = contents(keys)
    starts, lengths = ends[:-1], np.diff(ends)
    if lengths.min() >= LENGTH_MIN and lengths.max() <= LENGTH_MAX:
        _spread(data, starts, lengths, seed, words)
        return words
    is_short = (lengths >= LENGTH_MIN) & (lengths <= LENGTH_MAX)
    short, others = np.flatnonzero(is_short), np.flatnonzero(~is_short)
    if len(short):
        spread = np.empty((len(short), 2), np.uint64)
        _spread(data, starts[short], lengths[short], seed, spread)
        words[short] = spread
    words[others] = hash_keys(keys.take(to_arrow(others)), seed=seed)
    return words


def _spread(
    data: NDArray[np.uint8], starts: _Numbers, lengths: _Numbers, seed: int, out: Fingerprints
) -> None:
    """Enters the words of keys of `LENGTH_MIN` to `LENGTH_MAX` bytes, at least one of them."""
    low, high = int(lengths.min()), int(lengths.max())
    if low < 8 <= high:
        for rows in (np.flatnonzero(lengths < 8), np.flatnonzero(lengths >= 8)):
            some = np.empty((len(rows), 2), np.uint64)
            _spread(data, starts[rows], lengths[rows], seed, some)
            out[rows] = some
        return
    p, q, a, b = _secrets(seed)
    of_length = low if low == high else lengths
    ends = both_ends(data, starts, lengths, "<u8" if low >= 8 else "<u4")
    # NumPy 1 takes a lone number for no wider than its value needs.
    first, last = (words.astype(np.uint64, copy=False) for words in ends)
    spread = first ^ a[of_length]
    spread *= p
    lasts = last ^ b[of_length]
    out[:, 1] = lasts
    lasts *= q
    np.add(spread, lasts, out=out[:, 0])


@lru_cache(maxsize=16)
def _secrets(seed: int) -> tuple[np.uint64, np.uint64, Fingerprints, Fingerprints]:
    """Returns *p*, *q*, and by length *a* and *b*."""
    lengths = LENGTH_MAX + 1
    drawn = shake_256(seed.to_bytes(8, "big")).digest(8 * (2 + 2 * lengths))
    words = np.frombuffer(drawn, "<u8").astype(np.uint64)
    odd = words[:2] | np.uint64(1)
    return odd[0], odd[1], words[2 : 2 + lengths], words[2 + lengths :]

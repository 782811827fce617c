"""The canonical bytes of keys of any type: what is hashed, compared and counted (FORMAT.md §12.3).

They say nothing of a language or a library, and nothing that evolution changes: an integer has
eight bytes whatever its width. Their order is that of the keys, and those of different keys of one
log differ. A string's are its UTF-8, so it hashes as the bytes it would be in a log of bytes.

1. string, binary, fixed: the bytes themselves.
2. Integers: eight bytes, the highest first; of signed ones with the sign bit flipped.
3. Timestamps: as the signed integer that they are in their unit; dates in days.
4. Decimals: 16 bytes, the highest first, of the unscaled number with the sign bit flipped; truth
   values: 00 or 01.
5. A struct, field by field: 00 where the field is null; else 01 and its bytes. So that one field
   does not run into the next, 00 in bytes of variable length is 00 FF, and 00 00 ends them.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import BYTES_MAX, null, of_bytes, to_numpy

_SIGN: Final = np.uint64(1 << 63)
_NULL: Final = b"\x00"
_THERE: Final = b"\x01"
_ESCAPED: Final = b"\x00\xff"
_END: Final = b"\x00\x00"


def key_bytes(keys: pa.Array) -> pa.Array:
    """Returns the canonical bytes of each key as an array of binary, null where there is none.

    Binary keys are returned as they are.
    """
    kind = keys.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return keys
    if pa.types.is_struct(kind):
        return _of_structs(keys)
    if pa.types.is_boolean(kind):
        return _of_one_width(to_numpy(keys).view(np.uint8), keys)
    if pa.types.is_decimal(kind):
        return _of_one_width(_pairs(keys), keys)
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _of_one_width(_words(keys).astype(">u8"), keys)
    assert pa.types.is_string(kind) or pa.types.is_fixed_size_binary(kind), kind
    return keys.cast(pa.binary())


def _words(keys: pa.Array) -> NDArray[np.uint64]:
    """Returns the integers of 64 bits whose order without sign is that of the keys."""
    numbers = to_numpy(keys)
    if pa.types.is_unsigned_integer(keys.type):
        return numbers.astype(np.uint64)
    return numbers.astype(np.int64).view(np.uint64) ^ _SIGN


def _pairs(keys: pa.Array) -> NDArray[np.void]:
    """Returns decimals of 128 bits as two words each, the high one first."""
    words = np.frombuffer(keys.buffers()[1], "<u8", 2 * len(keys), 16 * keys.offset)
    pairs = words.reshape(-1, 2)[:, ::-1].astype(">u8")
    pairs[:, 0] ^= _SIGN
    return pairs.view("V16").reshape(-1)


def _of_one_width(data: NDArray[Any], keys: pa.Array) -> pa.Array:
    """Returns the bytes of numbers that have as many each."""
    rows, width = len(data), data.dtype.itemsize
    ends = np.arange(0, width * rows + 1, width, dtype=np.int64)
    if ends[-1] > BYTES_MAX:
        raise InvalidInputError(f"{rows} keys at once are too many; hand them over in parts")
    nulls = None
    if keys.null_count:
        # A null has no bytes, as it has none in an array of binary.
        valid = to_numpy(keys.is_valid())
        data, nulls = data[valid], _bits(valid)
        ends = np.concatenate(([0], np.cumsum(width * valid, dtype=np.int64)))
    buffers = [nulls, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def _of_structs(keys: pa.Array) -> pa.Array:
    parts = [_of_field(field) for field in keys.flatten()]
    joined = pc.binary_join_element_wise(*parts, _constant(b""))
    return pc.if_else(keys.is_valid(), joined, null(pa.binary()))


def _of_field(field: pa.Array) -> pa.Array:
    """Returns the bytes of one field in its struct, never null."""
    found = key_bytes(field)
    if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
        escaped = pc.replace_substring(found, _NULL, _ESCAPED)
        parts = [_constant(_THERE), escaped, _constant(_END)]
    else:
        parts = [_constant(_THERE), found]
    joined = pc.binary_join_element_wise(*parts, _constant(b""))
    return pc.fill_null(joined, _constant(_NULL))


def _constant(text: bytes) -> pa.Scalar:
    return of_bytes([text])[0]


def _bits(truths: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(truths, bitorder="little"))

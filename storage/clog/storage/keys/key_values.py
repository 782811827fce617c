"""Keys from their canonical bytes: what `key_bytes` made of them, as Python's values.

A struct is a tuple of its fields, which can stand in a dict.
"""

from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clog.storage.numpy_arrays import dtype_of

_SIGN: Final = 1 << 63
_EXACT: Final = Context(prec=38)
_END: Final = b"\x00\x00"
_ESCAPED: Final = b"\x00\xff"


def key_of_bytes(data: bytes, kind: pa.DataType) -> Any:
    """Returns the key of this type with these canonical bytes."""
    if pa.types.is_struct(kind):
        return _of_struct(data, 0, kind)[0]
    if pa.types.is_string(kind):
        return data.decode()
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return data
    number = int.from_bytes(data, "big")
    if pa.types.is_boolean(kind):
        return bool(number)
    if pa.types.is_decimal(kind):
        return Decimal(number - (1 << 127)).scaleb(-kind.scale, _EXACT)
    if pa.types.is_unsigned_integer(kind):
        return number
    number -= _SIGN
    if pa.types.is_integer(kind):
        return number
    buffers = [None, pa.py_buffer(np.array([number], dtype_of(kind)))]
    return pa.Array.from_buffers(kind, 1, buffers)[0].as_py()


def _of_struct(data: bytes, at: int, kind: pa.DataType) -> tuple[tuple[Any, ...], int]:
    """Returns the fields of the struct that begins at a byte, and where it ends."""
    found: list[Any] = []
    for field in kind:
        is_there, at = data[at], at + 1
        if not is_there:
            found.append(None)
        elif pa.types.is_struct(field.type):
            inner, at = _of_struct(data, at, field.type)
            found.append(inner)
        else:
            end, after = _end_of(data, at, field.type)
            octets = data[at:end]
            if after > end:
                octets = octets.replace(_ESCAPED, b"\x00")
            found.append(key_of_bytes(octets, field.type))
            at = after
    return tuple(found), at


def _end_of(data: bytes, at: int, kind: pa.DataType) -> tuple[int, int]:
    """Returns where a field's bytes end, and where the next field begins."""
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        width = 1 if pa.types.is_boolean(kind) else 8
        if pa.types.is_fixed_size_binary(kind) or pa.types.is_decimal(kind):
            width = kind.byte_width
        return at + width, at + width
    end = data.index(0, at)
    while data[end + 1] == 0xFF:
        end = data.index(0, end + 2)
    return end, end + len(_END)

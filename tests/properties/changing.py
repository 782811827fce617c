"""Changes of what is valid: of bytes, of trees of JSON, and of their text.

Bytes lose, repeat or exchange parts, and get lengths of 2 GB; trees of JSON get values of other
types, out of range, twice, too deep, or lose some. ``draw`` is a ``random.Random``.
"""

import copy
import json
import struct
import sys
from contextlib import suppress

LENGTHS = [
    *(struct.pack(f"{order}I", n) for order in "<>" for n in (0, 1, 2**31 - 1, 2**31, 2**32 - 1)),
    *(struct.pack(f"{order}q", n) for order in "<>" for n in (2**40, 2**63 - 1, -1)),
    b"\xfe\xff\xff\xff\x0f",
    b"\xfe" + b"\xff" * 8 + b"\x01",
]
ODD = [
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**70), 10**30, 10**4500),
    *(0.5, 1e308, float("inf"), float("nan"), "", "x" * 5000, "\ud800", "\0", "inf", "9" * 5000),
    *("2000000000", "-5", "1e9", "string", "int64", "bytes", "struct", "map", "array", [], {}),
]


def changed_bytes(draw, data):
    """Bytes with one to three changes."""
    data = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randint(0, len(data))
        end = min(len(data), at + draw.choice([0, 1, 1, 2, 4, 8, 40]))
        part = draw.choice(
            [
                b"",
                bytes([draw.randrange(256)]),
                draw.choice(LENGTHS),
                bytes(data[end : end + draw.randint(1, 60)]),
                draw.randbytes(draw.randint(1, 12)),
            ]
        )
        if draw.random() < 0.05:
            end = len(data)
        data[at:end] = part
    return bytes(data)


def places(value, at=()):
    """The path of every value within a tree."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else ()
    for name, each in enumerate(value) if isinstance(value, list) else inner:
        yield from places(each, (*at, name))


def changed_tree(draw, tree):
    """A tree with one to three changes."""
    tree = copy.deepcopy(tree)
    for _ in range(draw.randint(1, 3)):
        found = list(places(tree))
        if not found:
            return draw.choice(ODD)
        *above, name = draw.choice(found)
        around = tree
        for step in above:
            around = around[step]
        how = draw.randrange(6)
        if how == 0:
            del around[name]
        elif how == 1:
            other = tree
            for step in draw.choice(found):
                with suppress(LookupError, TypeError):
                    other = other[step]
            around[name] = copy.deepcopy(other)
        elif how == 2 and isinstance(around, dict):
            around[draw.choice(["", "type", "x" * 300, "\ud800", *around])] = around.pop(name)
        elif how == 3:
            for _ in range(draw.choice([1, 9, 200])):
                around[name] = [around[name]] if draw.random() < 0.5 else {"type": around[name]}
        elif isinstance(around[name], str) and how == 4:
            around[name] = changed_bytes(draw, around[name].encode("utf-8", "replace"))
            around[name] = around[name].decode("utf-8", "replace")
        elif type(around[name]) is int and how == 4:
            around[name] += draw.choice([1, -1, 1 << 31, 1 << 62])
        else:
            around[name] = draw.choice(ODD)
    return tree


def text_of(draw, tree):
    """A tree as JSON, sometimes with bytes changed."""
    try:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        data = json.dumps(tree).encode()
    except RecursionError:
        data = b"[" * 5000
    finally:
        sys.set_int_max_str_digits(limit)
    return changed_bytes(draw, data) if draw.random() < 0.15 else data

"""Values of Thrift's compact protocol, which Parquet's footer and page headers are made of.

A *value* comes with its *kind*, the number that stands for its type in the bytes: so what was read
can be written again, unknown fields too. A struct is a dict from field id to (kind, value), a list
or set is (kind of its elements, values); a map, which Parquet has nowhere, stays bytes. Integers
are read whatever their width; a caller who wants 32 bits asks for them.

Every step of the reader consumes a byte, and no size is believed before the bytes are there: so
what it makes is in proportion to what it was given, and it ends. Nesting is bounded.

`written` is the inverse: what was read becomes bytes again, those of Parquet's own writers.

Not here: what the fields mean (`footer`).
"""

from typing import Any, Final, TypeAlias

TRUE: Final = 1
FALSE: Final = 2
BYTE: Final = 3
I16: Final = 4
I32: Final = 5
I64: Final = 6
DOUBLE: Final = 7
BINARY: Final = 8
LIST: Final = 9
SET: Final = 10
MAP: Final = 11
STRUCT: Final = 12
UUID: Final = 13

DEPTH_MAX = 12
"""Of structs and containers in one another; Parquet's own need 7."""
VARINT_BYTES_MAX = 10

Struct: TypeAlias = dict[int, tuple[int, Any]]
"""Kind and value by field id."""


class ThriftError(ValueError):
    """The bytes are no such value."""


class Reader:
    """Reads one value after the other.

    Attributes:
        at: where the next one begins.
    """

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at

    def struct(self, depth: int = DEPTH_MAX) -> Struct:
        """Reads a struct.

        Raises:
            ThriftError: it is none, or its fields do not ascend.
        """
        found: Struct = {}
        data, at, field = self._data, self.at, 0
        # Most bytes of a footer pass here: what is frequent is read in place.
        try:
            while head := data[at]:
                kind, step = head & 15, head >> 4
                low = data[at + 1]
                if step and I16 <= kind <= I64 and low < 128:
                    at += 2
                    field += step
                    found[field] = (kind, (low >> 1) ^ -(low & 1))
                    continue
                self.at = at + 1
                field = field + step if step else self._far_field(field)
                found[field] = (kind, self.value(kind, depth))
                at = self.at
        except IndexError:
            raise ThriftError("it ends early") from None
        self.at = at + 1
        return found

    def field(self, before: int) -> tuple[int, int] | None:
        """Reads the header of the field after that with id ``before``: its id and kind. None at the
        end of the struct.
        """
        head = self._byte()
        if head == 0:
            return None
        return before + (head >> 4) if head >> 4 else self._far_field(before), head & 15

    def value(self, kind: int, depth: int = DEPTH_MAX) -> Any:
        """Reads what a field of this kind holds."""
        if I16 <= kind <= I64:
            number = self._varint()
            return (number >> 1) ^ -(number & 1)
        if kind == BINARY:
            return self.octets(self._varint())
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if depth == 0:
            raise ThriftError(f"values are nested more than {DEPTH_MAX} deep")
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in (LIST, SET):
            count, of = self.list_header()
            return of, self._elements(of, count, depth - 1)
        if kind == MAP:
            return self._map(depth - 1)
        widths = {BYTE: 1, DOUBLE: 8, UUID: 16}
        if kind not in widths:
            raise ThriftError(f"there is no kind {kind}")
        return self.octets(widths[kind])

    def list_header(self) -> tuple[int, int]:
        """Reads how many elements follow, and of which kind."""
        head = self._byte()
        return self._count(head >> 4 if head >> 4 != 15 else self._varint()), head & 15

    def integer(self) -> int:
        """Reads a signed integer of at most 64 bits."""
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def octets(self, count: int) -> bytes:
        """Reads so many bytes."""
        start, self.at = self.at, self.at + self._count(count)
        return self._data[start : self.at]

    def _far_field(self, before: int) -> int:
        """Reads the id of a field that is more than 15 after the one before."""
        field = self.integer()
        if field <= before:
            raise ThriftError(f"field {field} comes after field {before}")
        return field

    def _elements(self, kind: int, count: int, depth: int) -> list[Any]:
        if kind in (TRUE, FALSE):  # In a container a truth value takes a byte of its own.
            return [octet == TRUE for octet in self.octets(count)]
        if kind == STRUCT and depth:
            return [self.struct(depth - 1) for _ in range(count)]
        return [self.value(kind, depth) for _ in range(count)]

    def _map(self, depth: int) -> bytes:
        """Reads over the number of pairs, the kinds of keys and of values, and the pairs; returns
        their bytes.
        """
        start = self.at
        count = self._count(self._varint())
        kinds = self._byte() if count else 0
        for _ in range(count):
            self._elements(kinds >> 4, 1, depth)
            self._elements(kinds & 15, 1, depth)
        return self._data[start : self.at]

    def _count(self, count: int) -> int:
        """Checks a number of bytes or of elements, of which each takes one."""
        left = len(self._data) - self.at
        if count > left:
            raise ThriftError(f"{count} bytes or elements do not fit the {left} bytes there are")
        return count

    def _byte(self) -> int:
        try:
            found = self._data[self.at]
        except IndexError:
            raise ThriftError("it ends early") from None
        self.at += 1
        return found

    def _varint(self) -> int:
        found = self._byte()
        if found < 128:
            return found
        number, shift = found & 127, 7
        for _ in range(VARINT_BYTES_MAX - 1):
            found = self._byte()
            number |= (found & 127) << shift
            if found < 128:
                if number >> 64:
                    break
                return number
            shift += 7
        raise ThriftError("a number has more than 64 bits")


def written(struct: Struct) -> bytes:
    """Returns the bytes of a struct, as `Reader.struct` reads it."""
    out = bytearray()
    _write(out, STRUCT, struct)
    return bytes(out)


def _write(out: bytearray, kind: int, value: Any) -> None:
    """Appends what a field of this kind holds; truth values are in the field's header."""
    if I16 <= kind <= I64:
        out += _varint_of(value << 1 ^ value >> 63)
    elif kind == BINARY:
        out += _varint_of(len(value)) + value
    elif kind == STRUCT:
        _write_fields(out, value)
    elif kind in (LIST, SET):
        of, elements = value
        few = len(elements) < 15
        out.append((len(elements) if few else 15) << 4 | of)
        out += b"" if few else _varint_of(len(elements))
        for element in elements:
            _write_element(out, of, element)
    elif kind not in (TRUE, FALSE):
        out += value


def _write_fields(out: bytearray, struct: Struct) -> None:
    before = 0
    for field, (kind, value) in sorted(struct.items()):
        near = 0 < field - before < 16
        out.append((field - before if near else 0) << 4 | kind)
        out += b"" if near else _varint_of(field << 1 ^ field >> 63)
        _write(out, kind, value)
        before = field
    out.append(0)


def _write_element(out: bytearray, kind: int, value: Any) -> None:
    """Appends an element of a container: there a truth value takes a byte of its own."""
    if kind in (TRUE, FALSE):
        out.append(TRUE if value else FALSE)
    else:
        _write(out, kind, value)


def _varint_of(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)

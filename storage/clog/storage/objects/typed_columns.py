"""Columns of any type: what a record of them counts, which leaves of an object hold them, and one
type's arrays as another's.

*Leaf*: a column of an object as Parquet has it, named by its path with dots (``value.price``). Of a
struct only those leaves are read that are asked for; where none is, the cheapest, which tells
whether the struct is null.

Not here: what an append may give for a field (`conforming`).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clog.storage.errors import InvalidInputError
from clog.storage.numpy_arrays import scalar, to_numpy, validity_of

NUMBER_BYTES: Final = 8
"""What a number, truth value, date or time counts, whatever its width. Part of the format."""
DECIMAL_BYTES: Final = 16

Sizes = NDArray[np.int64]


def value_sizes(values: pa.Array) -> Sizes:
    """Returns the bytes that each value counts, 0 for null: as many under every later schema."""
    kind = values.type
    types = pa.types
    if types.is_binary(kind) or types.is_string(kind):
        lengths = pc.binary_length(values)
        return to_numpy(pc.fill_null(lengths, scalar(0, lengths.type))).astype(np.int64)
    if types.is_struct(kind):
        sizes = np.zeros(len(values), np.int64)
        for field in values.flatten():
            sizes += value_sizes(field)
        return sizes
    if is_listed(kind):
        until = np.concatenate(([0], np.cumsum(value_sizes(elements(values)))))
        counts = list_lengths(values)
        ends = np.cumsum(counts)
        of_lists: Sizes = until[ends] - until[ends - counts]
        return of_lists
    each = NUMBER_BYTES
    if types.is_fixed_size_binary(kind):
        each = kind.byte_width
    elif types.is_decimal(kind):
        each = DECIMAL_BYTES
    if not values.null_count:
        return np.full(len(values), each, np.int64)
    return to_numpy(values.is_valid()) * np.int64(each)


def leaf_sizes(field: pa.Field, level: int = 0) -> Iterator[tuple[int | None, int]]:
    """Yields, for each leaf of a field below the definition level, what `value_sizes` counts for a
    value that is there, None: its bytes, and its own definition level.
    """
    kind, types = field.type, pa.types
    level += field.nullable
    if types.is_struct(kind):
        for inner in kind:
            yield from leaf_sizes(inner, level)
    elif types.is_map(kind):
        yield from leaf_sizes(kind.key_field, level + 1)
        yield from leaf_sizes(kind.item_field, level + 1)
    elif types.is_list(kind):
        yield from leaf_sizes(kind.value_field, level + 1)
    elif types.is_binary(kind) or types.is_string(kind):
        yield None, level
    elif types.is_fixed_size_binary(kind):
        yield kind.byte_width, level
    else:
        yield DECIMAL_BYTES if types.is_decimal(kind) else NUMBER_BYTES, level


def is_listed(kind: pa.DataType) -> bool:
    """Tells whether it is a list or a map, which is a list of pairs."""
    return bool(pa.types.is_list(kind) or pa.types.is_map(kind))


def elements(lists: pa.Array) -> pa.Array:
    """Returns what is in lists, or the pairs of maps, one after the other; not what lies under
    nulls.
    """
    if pa.types.is_map(lists.type):
        buffers, at = lists.buffers()[:2], lists.offset
        kind, pairs = pa.list_(entries_type(lists.type)), [pairs_of(lists)]
        lists = pa.Array.from_buffers(kind, len(lists), buffers, offset=at, children=pairs)
    return lists.flatten()


def pairs_of(maps: pa.Array) -> pa.Array:
    """Returns the pairs that maps refer to, as structs."""
    fields = list(entries_type(maps.type))
    return pa.StructArray.from_arrays([maps.keys, maps.items], fields=fields)


def list_lengths(lists: pa.Array) -> Sizes:
    """Returns the number of elements of each list or map, 0 for null."""
    offsets = to_numpy(lists.offsets)
    lengths = np.diff(offsets).astype(np.int64)
    if lists.null_count:
        lengths[to_numpy(lists.is_null())] = 0
    return lengths


def of_list_views(views: pa.Array) -> pa.Array:
    """Returns views of lists as lists: Arrow's cast takes slices of them for what they are not."""
    kind = pa.list_(views.type.value_field)
    lengths = pc.fill_null(pc.list_value_length(views), 0)
    offsets = np.concatenate(([0], np.cumsum(to_numpy(lengths)))).astype(np.int32)
    own = [validity_of(views), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(kind, len(views), own, children=[views.flatten()])


def rebuilt_lists(lists: pa.Array, kind: pa.DataType, flat: pa.Array) -> pa.Array:
    """Returns lists, or maps, of this type, as long and null as those given; ``flat`` is what is in
    them.
    """
    offsets = np.concatenate(([0], np.cumsum(list_lengths(lists)))).astype(np.int32)
    return pa.Array.from_buffers(
        kind, len(lists), [validity_of(lists), pa.py_buffer(offsets)], children=[flat]
    )


def rebuilt_structs(structs: pa.Array, kind: pa.DataType, fields: Sequence[pa.Array]) -> pa.Array:
    """Returns structs of this type with these fields, null where those given are."""
    children = [pa.concat_arrays([f]) if f.offset else f for f in fields]
    return pa.Array.from_buffers(kind, len(structs), [validity_of(structs)], children=children)


def settled(array: pa.Array) -> pa.Array:
    """Returns the array with values, any, for what is NOT NULL and lies under a null: Parquet's
    writer looks at it.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [
            settled(child) if field.nullable else _there(settled(child))
            for field, child in ((kind.field(i), array.field(i)) for i in range(kind.num_fields))
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        return rebuilt_lists(array, kind, settled(elements(array)))
    return array


def _there(array: pa.Array) -> pa.Array:
    """Returns the array without nulls: what lies where they were."""
    if not array.null_count:
        return array
    kind, buffers = array.type, array.buffers()
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [None], children=children)
    if is_listed(kind):
        lists = rebuilt_lists(array, kind, elements(array))
        inner = lists.values if pa.types.is_list(kind) else pairs_of(lists)
        return pa.Array.from_buffers(kind, len(lists), [None, lists.buffers()[1]], children=[inner])
    own = [None, *buffers[1:]]
    return pa.Array.from_buffers(kind, len(array), own, offset=array.offset)


def entries_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of what is in a list or a map."""
    if pa.types.is_map(kind):
        return pa.struct([kind.key_field, kind.item_field])
    return kind.value_type


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns what was stored under an earlier schema as this type of a later one, or as the part
    of it that is wanted: fields that are missing are null, others are left out.

    Raises:
        pa.ArrowInvalid: a number that does not fit.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        places = {field.name: i for i, field in enumerate(array.type)}
        fields = [
            as_type(array.field(places[field.name]), field.type)
            if field.name in places
            else settled(pa.nulls(len(array), field.type))  # To be written by a pass.
            for field in kind
        ]
        return rebuilt_structs(array, kind, fields)
    if is_listed(kind):
        return rebuilt_lists(array, kind, as_type(elements(array), entries_type(kind)))
    if pa.types.is_timestamp(kind):  # Only a reader with a coarser unit asks for another.
        return pc.cast(array, options=pc.CastOptions(kind, allow_time_truncate=True))
    return array.cast(kind)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns these columns of a batch, of structs the fields that the schema has; those of an
    earlier one as they are under a later one.
    """
    arrays = [as_type(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def can_read(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Tells whether what has the stored type can be read as the other: as the same, or a later
    schema's.
    """
    if stored == kind:
        return True
    types = pa.types
    if types.is_struct(stored) and types.is_struct(kind):
        later = {field.name: field for field in kind}
        missing = later.keys() - {field.name for field in stored}
        return all(later[name].nullable for name in missing) and all(
            field.name in later
            and later[field.name].nullable >= field.nullable
            and can_read(field.type, later[field.name].type)
            for field in stored
        )
    if (types.is_list(stored) and types.is_list(kind)) or (
        types.is_map(stored) and types.is_map(kind)
    ):
        return can_read(entries_type(stored), entries_type(kind))
    if types.is_decimal(stored) and types.is_decimal(kind):
        return bool(stored.scale == kind.scale and stored.precision < kind.precision)
    numeric = (types.is_signed_integer, types.is_unsigned_integer, types.is_floating)
    same = any(test(stored) and test(kind) for test in numeric)
    return same and bool(stored.bit_width < kind.bit_width)


@lru_cache(maxsize=256)
def leaves_of(stored: pa.Field, wanted: pa.DataType) -> tuple[str, ...]:
    """Returns the columns of an object, by path, to be read of a stored field for what is wanted of
    it; a path stands for all leaves below. Of a map the keys are read in any case.
    """
    if pa.types.is_list(stored.type) and pa.types.is_list(wanted):
        return _leaves_inside(stored, "list", "element", wanted.value_type)
    if pa.types.is_map(stored.type) and pa.types.is_map(wanted):
        inside = _leaves_inside(stored, "key_value", "value", wanted.item_type)
        return inside if inside == (stored.name,) else (f"{stored.name}.key_value.key", *inside)
    if not (pa.types.is_struct(stored.type) and pa.types.is_struct(wanted)):
        return (stored.name,)
    asked = {field.name: field.type for field in wanted}
    found = [
        f"{stored.name}.{leaf}"
        for field in stored.type
        if field.name in asked
        for leaf in leaves_of(field, asked[field.name])
    ]
    return tuple(found) if found else (cheapest_leaf(stored),)


def _leaves_inside(stored: pa.Field, level: str, name: str, wanted: pa.DataType) -> tuple[str, ...]:
    """Returns those of what a list or a map holds; its own path where it is all of it. ``level`` is
    what Parquet has between.
    """
    kind = stored.type
    inner = kind.item_field if pa.types.is_map(kind) else kind.value_field
    found = leaves_of(inner.with_name(name), wanted)
    return (
        (stored.name,)
        if found == (name,)
        else tuple(f"{stored.name}.{level}.{leaf}" for leaf in found)
    )


@lru_cache(maxsize=256)
def cheapest_leaf(field: pa.Field) -> str:
    """Returns the path that costs least to read of those that tell where a field is null."""
    return _costs(field)[1]


def _costs(field: pa.Field) -> tuple[int, str]:
    kind = field.type
    if pa.types.is_struct(kind):
        cost, path = min(_costs(inner) for inner in kind)
        return cost, f"{field.name}.{path}"
    if is_listed(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 1 << 20, field.name
    return int(kind.bit_width), field.name


def lone_leaves(field: pa.Field) -> list[str]:
    """Returns the paths of the leaves of a field that are in no list or map."""
    if pa.types.is_struct(field.type):
        return [f"{field.name}.{path}" for inner in field.type for path in lone_leaves(inner)]
    return [] if is_listed(field.type) else [field.name]


def projected(schema: pa.Schema, columns: Iterable[str]) -> pa.Schema:
    """Returns the columns of a schema by name or, of structs, by the paths of fields with dots: of
    those only what is named. What is in a list is called ``element``, in a map ``value``.

    Raises:
        InvalidInputError: a path that names nothing.
    """
    tree: dict[str, Any] = {}
    for path in columns:
        node = tree
        *above, last = path.split(".")
        for name in above:
            below = node.setdefault(name, {})
            node = below if below is not None else {}  # All of it is wanted already.
        node[last] = None
    return pa.schema([_projected(schema, name, inner, "") for name, inner in tree.items()])


def _projected(around: Any, name: str, inner: dict[str, Any] | None, above: str) -> pa.Field:
    path = f"{above}{name}"
    names = [field.name for field in around]
    if name not in names:
        raise InvalidInputError(
            f"there is no column {path!r}; {'the columns are' if not above else 'it has'}"
            f" {', '.join(names)}"
        )
    field = around.field(names.index(name))
    if inner is None:
        return field
    kind = field.type
    if pa.types.is_struct(kind):
        fields = [_projected(kind, n, i, f"{path}.") for n, i in inner.items()]
        return field.with_type(pa.struct(fields))
    if not is_listed(kind):
        raise InvalidInputError(f"column {path!r} is of type {kind} and has no fields")
    is_map = pa.types.is_map(kind)
    own = kind.item_field.with_name("value") if is_map else kind.value_field.with_name("element")
    held = [_projected(pa.struct([own]), n, i, f"{path}.") for n, i in inner.items()]
    return field.with_type(pa.map_(kind.key_field, held[0]) if is_map else pa.list_(held[0]))

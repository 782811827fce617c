"""What the page hides of keys, values and headers: the paths of ``--mask``.

A path begins with ``key``, ``value`` or ``headers``. Each further step is the name of a field, of
an entry of a map, or of a header; ``*`` is any of them. Lists take no step: a path covers each of
their elements. A name may have dots, so steps may be joined: ``value.a.b`` is also the field
``a.b``. Text at which a path does not end is taken for JSON. If it is none, as a value of which a
part is to be hidden may be, nothing of it is shown; so it is with bytes in a typed column.

A path that can match nothing in a typed log is found by `cannot_match`; without a schema any can.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clog.storage.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

MASKED = "•••"
_TOPS = ("key", "value", "headers")
_ANY = "*"

Path = tuple[str, ...]


def mask_path(text: str) -> Path:
    """Returns the steps of a path; raises InvalidInputError if it is none."""
    top, *steps = text.split(".")
    if top not in _TOPS or not all(steps) or (top == "headers" and len(steps) > 1):
        raise InvalidInputError(
            f"--mask {text!r} is not a path in key, value or headers, such as value.user.email"
        )
    return (top, *steps)


def cannot_match(mask: Path, schema: "pa.Schema | None") -> bool:
    """Returns whether a mask hides nothing in any record of a log with this schema."""
    top, *steps = mask
    if schema is None or top == "headers":
        return False
    return not _reaches(schema.field(top).type, steps)


def _reaches(kind: "pa.DataType", steps: Sequence[str]) -> bool:
    from pyarrow import types

    if not steps:
        return True
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return any(_reaches(one, rest) for one, rest in _taken(fields, steps))
    if types.is_map(kind):
        if types.is_string(kind.key_type):
            return True  # Any name may be a key, alone or joined to what follows.
        return any(_reaches(kind.item_type, steps[n:]) for n in range(1, len(steps) + 1))
    if types.is_list(kind):
        return _reaches(kind.value_type, steps)
    return bool(types.is_string(kind) or types.is_binary(kind))


def _taken(fields: Mapping[str, Any], steps: Sequence[str]) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yields what the first steps name, and the steps that are left."""
    if steps[0] == _ANY:
        yield from ((one, steps[1:]) for one in fields.values())
    for n in range(1, len(steps) + 1):
        if (name := ".".join(steps[:n])) in fields:
            yield fields[name], steps[n:]


def without_masked(
    data: bytes | None, hidden: Sequence[Sequence[str]], kind: "pa.DataType | None" = None
) -> bytes | None:
    """Returns JSON, of the type ``kind`` if that is known, without the hidden parts; nothing of it
    if it is not JSON or nested too deeply.

    >>> without_masked(b'{"n": 1, "mail": "a@b"}', [["mail"]]).decode()
    '{"n": 1, "mail": "•••"}'
    """
    if data is None:
        return None
    try:
        found = json.loads(data) if all(hidden) else None
        if isinstance(found, dict | list):
            for path in hidden:
                found = _without(found, path, kind)
            return json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # Also half of a surrogate pair.
        pass
    return MASKED.encode()


def _without(found: Any, path: Sequence[str], kind: "pa.DataType | None") -> Any:
    """Returns JSON without what is at the path; ``kind`` tells a map, whose JSON is a list."""
    from pyarrow import types

    if not path:
        return MASKED
    if isinstance(found, str):
        is_text = kind is None or types.is_string(kind)
        masked = without_masked(found.encode(), [path]) if is_text else None
        return MASKED if masked is None else masked.decode()
    if kind is not None and types.is_map(kind) and isinstance(found, list):
        return [[key, _of_entry(key, item, path, kind.item_type)] for key, item in found]
    if isinstance(found, list):
        inner = None if kind is None else kind.value_type
        return [_without(one, path, inner) for one in found]
    if isinstance(found, dict):
        kinds = {} if kind is None else {field.name: field.type for field in kind}
        return {n: _of_entry(n, one, path, kinds.get(n)) for n, one in found.items()}
    return found


def _of_entry(name: Any, found: Any, path: Sequence[str], kind: "pa.DataType | None") -> Any:
    """Returns a field, or an entry of a map, without what the path hides of it."""
    text = name if isinstance(name, str) else json.dumps(name)
    for _, rest in _taken({text: None}, path):
        found = _without(found, rest, kind)
    return found


def shown_headers(
    pairs: Sequence[Mapping[str, Any]] | None, masks: Sequence[Path]
) -> list[Mapping[str, Any]]:
    """Returns the headers of a record that are shown, without the values of masked ones."""
    if ("headers",) in masks:
        return []
    hidden = {step for top, *steps in masks if top == "headers" for step in steps}
    is_hidden = hidden.__contains__ if _ANY not in hidden else lambda _: True
    return [
        {**pair, "value": MASKED.encode()} if is_hidden(pair["key"]) else pair
        for pair in pairs or ()
    ]

"""Names of fields and columns: how they are compared, and which a log may be given (S61).

Arrow, Polars and clog compare names exactly, DuckDB ignores the case of ASCII letters, and Spark,
Delta and Iceberg that of all letters, in two ways of Java's (``equalsIgnoreCase`` and
``toLowerCase``). Names are *alike* if one of them takes one for the other, as ``v`` and ``V``, or
``i`` and ``İ``. None of them normalises text: é as one character and as two are different names,
and so are ``ß`` and ``ss``.

*Siblings* are the fields of a struct, and the columns of a table: those of the key, by the names
that ``table.key.columns`` gives them, and the fields of the value. No door lets siblings become
alike: creation, evolution, configs. Logs of releases before 0.3.0 may have such; they keep them,
and a name then means the one that is spelled like it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clog.storage.format.log_info import LogSchema

_DOT_ABOVE = "\N{COMBINING DOT ABOVE}"


@lru_cache(maxsize=4096)
def folded(name: str) -> str:
    """Returns a text that is the same for names that are alike, and only for those."""
    lowered = name.lower()
    if lowered.isascii():
        return lowered
    # Java compares character by character in upper case first: ı and ſ become I and S. A capital I
    # with a dot becomes i and a combining dot as a text, and i as a character.
    return "".join(map(_simple, lowered)).replace(f"i{_DOT_ABOVE}", "i")


def _simple(character: str) -> str:
    upper = character.upper()
    return upper.lower() if len(upper) == 1 else character  # Java's ß stays as it is.


@lru_cache(maxsize=256)
def spellings(names: tuple[str, ...]) -> Mapping[str, str]:
    """Returns each name by itself, and by its `folded` form unless others have the same."""
    forms = [folded(name) for name in names]
    once = {form: name for form, name in zip(forms, names, strict=True) if forms.count(form) == 1}
    return {**once, **{name: name for name in names}}


def alike(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (earlier name, later name) for names of which an earlier one is alike."""
    seen: dict[str, str] = {}
    for name in names:
        form = folded(name)
        if form in seen:
            yield seen[form], name
        seen.setdefault(form, name)


def names_problem(
    schema: "LogSchema | None",
    key_columns: Sequence[str] = (),
    *,
    before: "tuple[LogSchema | None, Sequence[str]]" = (None, ()),
) -> str | None:
    """Returns why a log may not be given these names; None if it may. What is wrong with those
    that it had ``before`` is no reason.
    """
    known = set(_problems(*before))
    return next((p for p in _problems(schema, key_columns) if p not in known), None)


def _problems(schema: "LogSchema | None", key_columns: Sequence[str]) -> Iterator[str]:
    from clog.storage.format.log_info import OWN_PREFIX  # Cold processes use this module, too.

    for name in key_columns:
        if "." in name:
            yield f"table.key.columns names {name!r}; names have no dot"
    fields = [] if schema is None else list(schema.walk())
    for path, field in fields:
        if problem := name_problem(field.name):
            yield f"{path!r}: {problem}"
        for one, other in alike(inner.name for inner in field.fields):
            yield f"{path} has the fields {one!r} and {other!r}, {_TOO_ALIKE}"
    if schema is not None and key_columns:
        for name in (*key_columns, *(field.name for field in schema.value.fields)):
            if folded(name).startswith(OWN_PREFIX):
                yield f"a column {name!r}: names that begin with {OWN_PREFIX} are of clog's columns"
        in_key = set(key_columns)
        for one, other in alike((*key_columns, *(f.name for f in schema.value.fields))):
            if one in in_key:
                yield (
                    f"table.key.columns names {one!r}, and the value also has a field {other!r},"
                    f" {_TOO_ALIKE}"
                )


_TOO_ALIKE = (
    "which Spark and other engines that ignore case take for one name; names must differ, ignoring"
    " case"
)


def name_problem(name: str) -> str | None:
    """Returns why a field cannot have this name; None if it can."""
    if "\0" in name:
        return "a name with a NUL character, at which Arrow and DuckDB cut it; leave that out"
    return None

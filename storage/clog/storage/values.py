"""Values: what `dataclasses.dataclass` makes, with less work at import.

The standard one writes six methods of each class as text, and compiles them: a millisecond for a
frozen class with slots, of which an import of `Log` had 160, half of what it took. Here one text is
compiled, that of ``__init__``, when a class is first called or looked at; the other methods are the
same functions for all classes. What the standard library says of dataclasses holds: ``fields``,
``replace``, ``asdict``, ``match`` and pickles take them as they are.

Not here: parameters that nobody uses (``order``, ``unsafe_hash``), which are refused. A class
inherits from ones made here, or from none that are dataclasses.
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        kw_only: bool = False,
    ) -> Any:
        """Makes a dataclass, as the standard library's decorator of that name does."""
        bare = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)

        def made(cls: type) -> type:
            own = {name for name, value in vars(cls).items() if value is not None}
            cls.__doc__ = cls.__doc__ or cls.__name__  # Else it would be made of a signature.
            found = bare(cls)
            methods: dict[str, Any] = {"__init__": _Init(found), "__repr__": _repr}
            if eq:
                found.__compared__ = _compared_of(found)
                methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
                methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
            for name in methods.keys() - own:
                setattr(found, name, methods[name])
            return found

        return made if cls is None else made(cls)


class _Absent:
    def __repr__(self) -> str:
        return "<factory>"  # As signatures of dataclasses say.


_ABSENT = _Absent()


class _Init:
    """Stands for ``__init__`` until somebody asks for it."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = _init_of(self._cls)
        self._cls.__init__ = made  # type: ignore[misc]
        return made if instance is None else made.__get__(instance, owner)


def _init_of(cls: type) -> Any:
    """Returns the method that sets the fields of a class."""
    given: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    names: dict[str, Any] = {"_set": object.__setattr__, "_absent": _ABSENT}
    for field in dataclasses.fields(cls):
        name = value = field.name
        default = ""
        if field.default is not dataclasses.MISSING:
            names[f"_{name}"], default = field.default, f"=_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"_{name}"], default = field.default_factory, "=_absent"
            value = f"_{name}() if {name} is _absent else {name}"
        assert field.init or not default, "such fields are set by __post_init__"
        if field.init:
            (by_name if field.kw_only else given).append(name + default)
            lines.append(f"    _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    parameters = ["self", *given, *(["*", *by_name] if by_name else [])]
    text = [f"def __init__({', '.join(parameters)}):", *(lines or ["    pass"])]
    exec("\n".join(text), names)  # noqa: S102 - names of fields
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls)} | {"return": None}
    return made


def _compared_of(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    """Returns what takes of a value the fields that are compared."""
    names = [f.name for f in dataclasses.fields(cls) if f.compare]
    if len(names) > 1:
        return attrgetter(*names)  # Not a function, so no method either.
    return staticmethod(lambda value: tuple(getattr(value, name) for name in names))


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    compared = self.__compared__
    return compared(self) == compared(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

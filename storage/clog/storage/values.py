"""Values: what `dataclasses.dataclass` makes, with less work at import.

The standard one writes six methods of each class as text, and compiles them: a millisecond for a
frozen class with slots, of which an import of `Log` had 160, half of what it took. Here those that
name fields are compiled together, when one of them is first called or looked at; the other methods
are the same functions for all classes. What the standard library says of dataclasses holds:
``fields``, ``replace``, ``asdict``, ``match`` and pickles take them as they are.

Not here: parameters that nobody uses (``order``, ``unsafe_hash``), which are refused. A class
inherits from ones made here, or from none that are dataclasses.
"""

import dataclasses
from collections.abc import Collection
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
            asked = {"__init__": True, "__eq__": eq, "__hash__": eq and frozen}
            compiled = [name for name, is_asked in asked.items() if is_asked and name not in own]
            methods: dict[str, Any] = {name: _Later(found, name, compiled) for name in compiled}
            methods |= {"__repr__": _repr} | ({"__hash__": None} if eq and not frozen else {})
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


class _Later:
    """Stands for a method until somebody asks for one of those that are compiled together."""

    def __init__(self, cls: type, name: str, together: Collection[str]) -> None:
        self._cls, self._name, self._together = cls, name, together

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        made = _compiled(self._cls)
        for name in self._together:
            setattr(self._cls, name, made[name])
        method = made[self._name]
        return method if instance is None else method.__get__(instance, owner)


def _compiled(cls: type) -> dict[str, Any]:
    """Returns the methods of a class that name its fields."""
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
    compared = [f.name for f in dataclasses.fields(cls) if f.compare]
    mine, others = ("".join(f"{of}.{name}, " for name in compared) for of in ("self", "other"))
    text = [
        f"def __init__({', '.join(parameters)}) -> None:",
        *(lines or ["    pass"]),
        "def __eq__(self, other):",
        "    same = other.__class__ is self.__class__",
        f"    return ({mine}) == ({others}) if same else NotImplemented",
        "def __hash__(self):",
        f"    return hash(({mine}))",
    ]
    exec("\n".join(text), names)  # noqa: S102 - names of fields
    for name in ("__init__", "__eq__", "__hash__"):
        names[name].__qualname__ = f"{cls.__qualname__}.{name}"
    names["__init__"].__annotations__ |= {f.name: f.type for f in dataclasses.fields(cls)}
    return names


def _repr(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} cannot be changed")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)

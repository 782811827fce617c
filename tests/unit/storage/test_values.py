"""clog's dataclasses compared with those of the standard library, which they replace."""

import copy
import dataclasses
import inspect
import pickle

import pytest

from clog.storage import env as values


def classes(dataclass):
    """The same classes, made by one decorator or the other."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """A point."""

        x: int
        y: int = 0
        seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False, repr=False)

        def moved(self):
            return dataclasses.replace(self, x=self.x + 1)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named(Point):
        name: str
        note: str = "n"

        def __repr__(self):
            return "of its own"

    @dataclass(frozen=True, slots=True, eq=False)
    class Lone:
        x: int

    @dataclass(slots=True)
    class Open:
        total: int = 0

        def __post_init__(self):
            self.total += 1

    @dataclass
    class Bare:
        x: list[int]
        made: int = dataclasses.field(kw_only=True)

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    return {cls.__name__: cls for cls in (Point, Named, Lone, Open, Bare, Empty)}


OURS, STANDARD = classes(values.dataclass), classes(dataclasses.dataclass)
CALLS = [
    ("Point", (1,), {}),
    ("Point", (1, 2, {"a": 1}), {}),
    ("Point", (), {"y": 3, "x": 4}),
    ("Named", (1,), {"name": "n"}),
    ("Lone", (1,), {}),
    ("Open", (), {}),
    ("Bare", ([1],), {"made": 2}),
    ("Empty", (), {}),
]
globals().update({f"{name}_": cls for name, cls in OURS.items()})
for name_, cls_ in OURS.items():
    cls_.__qualname__, cls_.__module__ = f"{name_}_", __name__


@pytest.mark.parametrize("name", OURS)
def test_a_class_looks_as_the_standard_one(name):
    """Its signature, its fields in order, what it matches, and whether it can be hashed."""
    ours, standard = OURS[name], STANDARD[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(standard))
    assert [f.name for f in dataclasses.fields(ours)] == [
        f.name for f in dataclasses.fields(standard)
    ]
    assert ours.__match_args__ == standard.__match_args__
    assert (ours.__hash__ is None) == (standard.__hash__ is None)


@pytest.mark.parametrize(("name", "given", "named"), CALLS)
def test_a_value_does_as_the_standard_one(name, given, named):
    """Fields and defaults, equality and hash, text, pickles, copies and replacements."""
    ours, standard = (made[name](*given, **named) for made in (OURS, STANDARD))
    again = OURS[name](*given, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(standard)
    assert (ours == again) == (standard == STANDARD[name](*given, **named))
    assert ours != standard
    assert repr(ours).replace(f"{name}_(", f"{type(standard).__qualname__}(") == repr(standard)
    if standard.__hash__ is not None and name != "Lone":
        assert hash(ours) == hash(again) == hash(standard)
    for other in (pickle.loads(pickle.dumps(ours)), copy.copy(ours), copy.deepcopy(ours)):
        assert dataclasses.asdict(other) == dataclasses.asdict(standard)
    if hasattr(ours, "moved"):
        assert ours.moved().x == ours.x + 1


@pytest.mark.parametrize(("name", "given"), [("Point", (1,)), ("Lone", (1,)), ("Empty", ())])
def test_what_is_frozen_stays(name, given):
    """As the standard error says, for any except clause; also for a name that is not a field."""
    value = OURS[name](*given)
    for act in (lambda v: setattr(v, "x", 9), lambda v: delattr(v, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            act(value)
    assert dataclasses.astuple(value)[:1] == given


@pytest.mark.parametrize(("given", "named"), [((), {}), ((1, 2, {}, 4), {}), ((1,), {"z": 1})])
def test_wrong_arguments_are_refused(given, named):
    """By Python, with its words."""
    with pytest.raises(TypeError, match="argument"):
        OURS["Point"](*given, **named)


def test_what_is_not_there_is_refused():
    """Parameters of the standard decorator that have no effect here."""
    with pytest.raises(TypeError, match="order"):
        values.dataclass(order=True)

"""The agent's own dataclasses behave like those of ``dataclasses``."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gswarm_agent import frozen
from gswarm_agent.frame import GpuFacts


@frozen.dataclass(frozen=True)
class Pair:
    """Two fields, one with a default."""

    x: float
    y: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self.y)


@frozen.dataclass(frozen=True)
class Nothing:
    """A class without fields."""


@frozen.dataclass(frozen=True)
class Hashed:
    """A class with its own ``__hash__``."""

    x: int

    def __hash__(self) -> int:
        return 7


@frozen.dataclass(frozen=True)
class OddFieldNames:
    """Fields named like local variables of the generated methods."""

    fields: int
    value: int
    cls: int


usual: Any = dataclasses.make_dataclass(
    "Pair", [("x", float), ("y", tuple[int, ...], dataclasses.field(default=()))], frozen=True
)
values = st.tuples(st.integers(), st.lists(st.integers(), max_size=2).map(tuple))


@given(values, values)
def test_eq_hash_and_repr_equal_those_of_dataclasses(one: Any, other: Any) -> None:
    assert (Pair(*one) == Pair(*other)) == (usual(*one) == usual(*other))
    assert (hash(Pair(*one)) == hash(Pair(*other))) == (hash(usual(*one)) == hash(usual(*other)))
    assert repr(Pair(*one)) == repr(usual(*one))
    assert Pair(*one) != usual(*one)
    assert Nothing() == Nothing()


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, (), 2), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": ()})]
)
def test_wrong_arguments_raise_type_error(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Pair(*given, **named)
    with pytest.raises(TypeError):
        usual(*given, **named)


def test_fields_keep_the_order_of_the_class() -> None:
    assert list(vars(Pair(y=(1,), x=2)).items()) == [("x", 2), ("y", (1,))]
    assert Pair(1) == Pair(1, ())
    match Pair(3, (4,)):
        case Pair(x, y):
            assert (x, y) == (3, (4,))


def test_any_field_name_works() -> None:
    assert vars(frozen.replace(OddFieldNames(1, 2, 3), value=4)) == {"fields": 1, "value": 4, "cls": 3}
    assert dataclasses.replace(OddFieldNames(fields=1, value=2, cls=3), cls=5) == OddFieldNames(1, 2, 5)


def test_instances_are_frozen() -> None:
    point: Any = Pair(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.z = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point == Pair(1)


def test_replace_changes_only_the_named_fields() -> None:
    assert frozen.replace(Pair(1, (2,)), x=3) == dataclasses.replace(Pair(1, (2,)), x=3) == Pair(3, (2,))
    point: Any = Pair(1)
    with pytest.raises(TypeError):
        frozen.replace(point, z=1)


def test_methods_of_the_class_are_kept() -> None:
    assert hash(Hashed(1)) == 7
    assert len(Pair(1, (2, 3))) == 2


def test_functions_of_dataclasses_accept_them() -> None:
    assert dataclasses.is_dataclass(Pair)
    assert [field.name for field in dataclasses.fields(GpuFacts)][:3] == ["index", "uuid", "name"]
    assert dataclasses.asdict(Pair(1, (2,))) == {"x": 1, "y": (2,)}
    assert dataclasses.astuple(Nothing()) == ()


def test_instances_can_be_copied_and_pickled() -> None:
    point = Pair(1, (2,))
    assert point == copy.deepcopy(point) == pickle.loads(pickle.dumps(point))

"""The agent's own dataclasses, compared with those of ``dataclasses``."""

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
        """A method of its own."""
        return len(self.y)


@frozen.dataclass(frozen=True)
class Nothing:
    """No field."""


@frozen.dataclass(frozen=True)
class Hashed:
    """A class that brings one of the methods itself."""

    x: int

    def __hash__(self) -> int:
        return 7


@frozen.dataclass(frozen=True)
class OddFieldNames:
    """Fields with names that methods have for what is theirs."""

    fields: int
    value: int
    cls: int


usual: Any = dataclasses.make_dataclass(
    "Pair", [("x", float), ("y", tuple[int, ...], dataclasses.field(default=()))], frozen=True
)
values = st.tuples(st.integers(), st.lists(st.integers(), max_size=2).map(tuple))


@given(values, values)
def test_they_are_compared_and_shown_as_dataclasses(one: Any, other: Any) -> None:
    assert (Pair(*one) == Pair(*other)) == (usual(*one) == usual(*other))
    assert (hash(Pair(*one)) == hash(Pair(*other))) == (hash(usual(*one)) == hash(usual(*other)))
    assert repr(Pair(*one)) == repr(usual(*one))
    assert Pair(*one) != usual(*one)
    assert Nothing() == Nothing()


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1, (), 2), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": ()})]
)
def test_what_does_not_fit_is_refused(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Pair(*given, **named)
    with pytest.raises(TypeError):
        usual(*given, **named)


def test_the_order_of_fields_is_that_of_the_class() -> None:
    assert list(vars(Pair(y=(1,), x=2)).items()) == [("x", 2), ("y", (1,))]
    assert Pair(1) == Pair(1, ())
    match Pair(3, (4,)):
        case Pair(x, y):
            assert (x, y) == (3, (4,))


def test_no_name_of_a_field_is_in_the_way() -> None:
    assert vars(frozen.replace(OddFieldNames(1, 2, 3), value=4)) == {"fields": 1, "value": 4, "cls": 3}
    assert dataclasses.replace(OddFieldNames(fields=1, value=2, cls=3), cls=5) == OddFieldNames(1, 2, 5)


def test_they_cannot_be_changed() -> None:
    point: Any = Pair(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        point.z = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del point.x
    assert point == Pair(1)


def test_another_one_differs_in_what_is_named() -> None:
    assert frozen.replace(Pair(1, (2,)), x=3) == dataclasses.replace(Pair(1, (2,)), x=3) == Pair(3, (2,))
    point: Any = Pair(1)
    with pytest.raises(TypeError):
        frozen.replace(point, z=1)


def test_a_method_of_its_own_stays() -> None:
    assert hash(Hashed(1)) == 7
    assert len(Pair(1, (2, 3))) == 2


def test_dataclasses_knows_them() -> None:
    assert dataclasses.is_dataclass(Pair)
    assert [field.name for field in dataclasses.fields(GpuFacts)][:3] == ["index", "uuid", "name"]
    assert dataclasses.asdict(Pair(1, (2,))) == {"x": 1, "y": (2,)}
    assert dataclasses.astuple(Nothing()) == ()


def test_they_can_be_copied_and_sent_to_other_processes() -> None:
    point = Pair(1, (2,))
    assert point == copy.deepcopy(point) == pickle.loads(pickle.dumps(point))

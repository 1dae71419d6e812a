"""Dataclasses from plain values that others sent or recorded, whose types are checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def typed(kind: type[T], *values: Any) -> T:
    """Return an instance of a dataclass, whose fields have their types. Raises TypeError for others."""
    dataclass: Any = kind
    for (name, types), value in zip(field_types(dataclass).items(), values, strict=False):
        if type(value) not in types:
            raise TypeError(f"{kind.__name__}.{name} is no {type(value).__name__}")
    return kind(*values)


@cache
def field_types(kind: type[Any]) -> dict[str, frozenset[type]]:
    """Return the types that plain values of a dataclass may have by field; parts of containers may be any."""
    plain: dict[Any, set[type]] = {float: {int, float}, Mapping: {dict}}
    found = {}
    for name, hint in get_type_hints(kind).items():
        kinds = [
            get_origin(one) or one for one in (get_args(hint) if isinstance(hint, UnionType) else [hint])
        ]
        found[name] = frozenset[type]().union(*(plain.get(one, {one}) for one in kinds))
    return found

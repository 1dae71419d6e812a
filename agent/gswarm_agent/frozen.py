"""Frozen dataclasses as those of ``dataclasses``, but soon there.

That module brings ``inspect`` along and compiles six functions for each class, which is in the way of an
agent's first frame. Here a class's ``__init__`` is compiled when it makes its first instance, and all classes
share the rest. ``dataclasses`` itself, when somebody asks it about them, knows them as its own.
"""

from __future__ import annotations

__all__ = ["dataclass", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, replace  # what a type checker is to take them for
    from typing import Any, NoReturn


def _frozen(*, frozen: bool) -> Callable[[type], type]:
    """The decorator: ``@dataclass(frozen=True)``, and no other."""
    if not frozen:
        raise TypeError("these dataclasses are frozen")
    return _complete


def _complete(cls: Any) -> Any:
    cls.__annotations__ = getattr(cls, "__annotations__", {})  # before Python 3.10 only fields bring it
    given = {"__match_args__": tuple(cls.__annotations__), "__dataclass_fields__": _Fields()}
    for name, value in {**_METHODS, **given}.items():
        if name not in vars(cls):
            setattr(cls, name, value)
    return cls


def _init(self: Any, /, *values: Any, **named: Any) -> None:
    cls = type(self)
    cls.__init__ = _compiled_init(cls)
    cls.__init__(self, *values, **named)


def _compiled_init(cls: Any) -> Any:
    names = cls.__match_args__
    lines = [f"def __init__(self, {', '.join(names)}):", " __fields = self.__dict__"]
    lines += [f" __fields[{name!r}] = {name}" for name in names]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)  # noqa: S102  # made of a class's own names
    init = made["__init__"]
    init.__defaults__ = tuple(vars(cls)[name] for name in names if name in vars(cls))
    return init


def _values(self: Any) -> list[Any]:
    fields = vars(self)
    return [fields[name] for name in self.__match_args__]


def _eq(self: Any, other: object) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return self is other or _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(tuple(_values(self)))


def _repr(self: Any) -> str:
    said = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({said})"


def _refuse(_self: Any, name: str, _value: Any = None) -> NoReturn:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{name!r} can't be changed")


_METHODS = {
    "__init__": _init,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
}


class _Fields:
    """A class's fields for ``dataclasses``, which is imported when somebody looks at them."""

    def __get__(self, _value: Any, cls: Any) -> Any:
        import dataclasses

        own = vars(cls)
        fields = [
            (name, kind, dataclasses.field(default=own.get(name, dataclasses.MISSING)))
            for name, kind in cls.__annotations__.items()
        ]
        made: Any = dataclasses.make_dataclass(cls.__name__, fields)
        cls.__dataclass_fields__ = made.__dataclass_fields__
        return cls.__dataclass_fields__


def _replaced(value: Any, /, **changes: Any) -> Any:
    """The same with other values in some fields."""
    return type(value)(**{**dict(zip(value.__match_args__, _values(value))), **changes})


if not TYPE_CHECKING:
    dataclass, replace = _frozen, _replaced

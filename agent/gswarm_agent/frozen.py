"""Frozen dataclass decorator that starts faster than ``dataclasses``, for the agent.

``dataclasses`` imports ``inspect`` and compiles six functions for each class. Here ``__init__`` is compiled
at a class's first instance, and all classes share the other methods. ``dataclasses.fields``, ``asdict`` and
``replace`` accept these classes. The figures are in docs/decisions/003-agent-dataclasses.md.
"""

from __future__ import annotations

__all__ = ["dataclass", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass, replace  # for type checkers
    from typing import Any, NoReturn


def _frozen(*, frozen: bool) -> Callable[[type], type]:
    """Return the decorator, for ``frozen=True`` only."""
    if not frozen:
        raise TypeError("these dataclasses are frozen")
    return _complete


def _complete(cls: Any) -> Any:
    cls.__annotations__ = getattr(cls, "__annotations__", {})  # before Python 3.10 only fields bring it
    attributes = {"__match_args__": tuple(cls.__annotations__), "__dataclass_fields__": _Fields()}
    for name, value in {**_METHODS, **attributes}.items():
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
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)  # noqa: S102  # compiled from a class's own names
    init = namespace["__init__"]
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
    fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({fields})"


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
    """A class's fields for ``dataclasses``, which is imported at the first access."""

    def __get__(self, _value: Any, cls: Any) -> Any:
        import dataclasses

        own = vars(cls)
        fields = [
            (name, kind, dataclasses.field(default=own.get(name, dataclasses.MISSING)))
            for name, kind in cls.__annotations__.items()
        ]
        standard: Any = dataclasses.make_dataclass(cls.__name__, fields)
        cls.__dataclass_fields__ = standard.__dataclass_fields__
        return cls.__dataclass_fields__


def _replaced(value: Any, /, **changes: Any) -> Any:
    """Return a copy with other values in some fields."""
    return type(value)(**{**dict(zip(value.__match_args__, _values(value))), **changes})


if not TYPE_CHECKING:
    dataclass, replace = _frozen, _replaced

"""Events as JSON and back, by their declared types; for the journal and for replays."""

import dataclasses
import typing
from enum import Enum
from typing import Any, NewType

from tiderl_jax.core import events
from tiderl_jax.core.errors import StorageFault
from tiderl_jax.core.events import Event

KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in typing.get_args(events.Event)}


def encode(event: Event) -> dict[str, Any]:
    """A JSON object: the event's kind and its fields."""
    fields = {field.name: _plain(getattr(event, field.name)) for field in dataclasses.fields(event)}
    return {"kind": type(event).__name__, **fields}


def decode(record: dict[str, Any]) -> Event:
    """The event that `encode` wrote.

    Raises:
      StorageFault: the record is none.
    """
    fields = dict(record)
    kind = KINDS.get(fields.pop("kind", ""))
    if kind is None:
        raise StorageFault(f"The journal holds a record of an unknown kind: {record!r}.")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _typed(hints[name], value) for name, value in fields.items()})


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_plain(item) for item in typing.cast(tuple[Any, ...], value)]
    return value


def _typed(hint: Any, value: Any) -> Any:
    named_tuple_fields: tuple[str, ...] | None = getattr(hint, "_fields", None)
    if named_tuple_fields is not None:
        inner = typing.get_type_hints(hint)
        parts = zip(named_tuple_fields, value, strict=True)
        return hint(*(_typed(inner[name], item) for name, item in parts))
    if isinstance(hint, NewType):
        return value
    if typing.get_origin(hint) is tuple:
        return tuple(_item(hint, position, item) for position, item in enumerate(value))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return value


def _item(hint: Any, position: int, item: Any) -> Any:
    """One item of `tuple[X, ...]` or of `tuple[X, Y]`."""
    kinds = typing.get_args(hint)
    return _typed(kinds[0] if kinds[-1] is Ellipsis else kinds[position], item)

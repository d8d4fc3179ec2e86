"""Records as JSON and back, exactly, by the types of their fields: a new field of a record is
carried without a line here.

Carried: int, float, str, bool, None, ``object`` (those, and lists, tuples and dicts of them),
unions, tuples, lists, dicts, dataclasses and NamedTuples. A value must be of its field's very type:
a subclass would come back as another one.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

_PLAIN = (bool, int, float, str, type(None))


class CodecError(ValueError):
    """A type that cannot be carried, or a value that is not of its field's type."""


class _Codec(NamedTuple):
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    takes: Callable[[Any], bool]
    """Whether a value is of this type, as far as a union must tell its members apart."""
    plain: type | None = None
    """The type, where JSON has it."""


def encode(value: Any, kind: Any) -> Any:
    """``value``, of type ``kind``, as what ``json.dumps`` takes. Raises CodecError."""
    return codec_of(kind).encode(value)


def decode(data: Any, kind: Any) -> Any:
    """The value that :func:`encode` was given. Raises CodecError for what it did not make."""
    try:
        return codec_of(kind).decode(data)
    except (AttributeError, KeyError, LookupError, TypeError) as error:
        raise CodecError(f"not a {kind}: {error}") from error


@cache
def codec_of(kind: Any) -> _Codec:
    """How ``kind`` is carried. Raises CodecError for a type that cannot be."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN or kind is None:
        return _exactly(type(None) if kind is None else kind)
    if kind is object or kind is Any:
        return _Codec(_encode_any, _decode_any, lambda value: True)
    if origin in (typing.Union, types.UnionType):
        return _union(
            [codec_of(one) for one in arguments if one is not type(None)], type(None) in arguments
        )
    if origin in (tuple, list) and arguments and (origin is list or arguments[-1] is ...):
        return _many(origin, codec_of(arguments[0]))
    if origin is tuple and arguments:
        return _record(tuple, [codec_of(one) for one in arguments], tuple, tuple)
    if origin is dict:
        return _pairs(codec_of(arguments[0]), codec_of(arguments[1]))
    if is_dataclass(kind) and isinstance(kind, type):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = typing.get_type_hints(kind)
        return _record(
            kind,
            [codec_of(hints[name]) for name in kind._fields],
            tuple,
            lambda values: kind(*values),
        )
    raise CodecError(f"{kind} cannot be carried as JSON")


def _check(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise CodecError(f"{value!r:.100} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _exactly(kind: type) -> _Codec:
    def same(value: Any) -> Any:
        return value if type(value) is kind else _check(value, kind)

    return _Codec(same, same, lambda value: type(value) is kind, kind)


def _dataclass(kind: Any) -> _Codec:
    hints, named = typing.get_type_hints(kind), fields(kind)
    if not all(one.init for one in named):
        raise CodecError(f"{kind} has a field that is not given to it")
    names = [one.name for one in named]

    def values(value: Any) -> list[Any]:
        return [getattr(value, name) for name in names]

    return _record(
        kind, [codec_of(hints[name]) for name in names], values, lambda found: kind(*found)
    )


def _record(
    kind: type, parts: list[_Codec], values: Callable[[Any], Any], make: Callable[[list[Any]], Any]
) -> _Codec:
    encoders, decoders = [part.encode for part in parts], [part.decode for part in parts]

    def encode_it(value: Any) -> Any:
        found = values(_check(value, kind))
        if len(found) != len(encoders):
            raise CodecError(f"{value!r:.100} does not have {len(encoders)} values")
        return [one(part) for one, part in zip(encoders, found, strict=True)]

    def decode_it(data: Any) -> Any:
        if len(_check(data, list)) != len(decoders):
            raise CodecError(f"{kind.__name__} does not have {len(data)} values")
        return make([one(part) for one, part in zip(decoders, data, strict=True)])

    return _Codec(encode_it, decode_it, lambda value: type(value) is kind)


def _many(kind: type, part: _Codec) -> _Codec:
    only = {part.plain}  # most sequences are shapes: looking at all types at once is twice as fast

    def decode_it(data: Any) -> Any:
        if set(map(type, _check(data, list))) == only:
            return kind(data)
        return kind([part.decode(one) for one in data])

    return _Codec(
        lambda value: [part.encode(one) for one in _check(value, kind)],
        decode_it,
        lambda value: type(value) is kind,
    )


def _pairs(key: _Codec, part: _Codec) -> _Codec:
    """A list of pairs: keys may be numbers, and their order stays."""
    return _Codec(
        lambda value: [
            [key.encode(name), part.encode(one)] for name, one in _check(value, dict).items()
        ],
        lambda data: {key.decode(name): part.decode(one) for name, one in _check(data, list)},
        lambda value: type(value) is dict,
    )


def _union(members: list[_Codec], optional: bool) -> _Codec:
    def encode_it(value: Any) -> Any:
        if value is None and optional:
            return None
        for place, member in enumerate(members):
            if member.takes(value):
                return member.encode(value) if len(members) == 1 else [place, member.encode(value)]
        raise CodecError(f"{value!r:.100} is of none of the types that it may have")

    def decode_it(data: Any) -> Any:
        if data is None and optional:
            return None
        if len(members) == 1:
            return members[0].decode(data)
        place, value = data
        return members[place].decode(value)

    return _Codec(
        encode_it, decode_it, lambda value: any(member.takes(value) for member in members)
    )


def _encode_any(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [_encode_any(one) for one in value]}
    if kind is dict:
        return {"dict": [[_encode_any(name), _encode_any(one)] for name, one in value.items()]}
    raise CodecError(f"a {kind.__name__} cannot be carried as JSON")


def _decode_any(data: Any) -> Any:
    if type(data) in _PLAIN:
        return data
    ((kind, values),) = _check(data, dict).items()
    if kind == "dict":
        return {_decode_any(name): _decode_any(one) for name, one in values}
    found = [_decode_any(one) for one in values]
    return tuple(found) if kind == "tuple" else found

"""Arguments are looked at before anything is done: one name has one meaning, and one check, in all functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from antiphon.errors import Invalid, Unsupported, quote, unknown

P = ParamSpec("P")
R = TypeVar("R")
MOST = 2**22  # ranks of a group
Check = Callable[[Any, str], Any]
TOO_LARGE = (
    "out of memory: the machine, the schedule or the size asked for is too large for this computer; try a smaller one"
)


def whole(least: int, most: int = 2**60) -> Check:
    """A whole number, also NumPy's."""

    def check(value: Any, name: str) -> int:
        try:
            number = int(value.__index__())
        except (AttributeError, TypeError, ValueError):
            number = least - 1
        if isinstance(value, bool) or not least <= number <= most:
            upto = f" to {most}" if most < 2**60 else ""
            raise Invalid(f"{name}: expected a whole number from {least}{upto}, got {quote(value)}")
        return number

    return check


def text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name}: expected a text, got {quote(value)}")
    return value


def yes_or_no(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise Invalid(f"{name}: expected True or False, got {quote(value)}")
    return value


def path(value: Any, name: str) -> str:
    """The name of a file or folder, as a text."""
    try:
        found = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:  # an object of others, which cannot even say what it is called
        found = None
    if not isinstance(found, str) or "\0" in found or not _can_be_named(found):
        raise Invalid(f"{name}: expected the name of a file, got {quote(value)}")
    return found


def _can_be_named(text: str) -> bool:
    try:
        return bool(os.fsencode(text)) or not text
    except UnicodeEncodeError:
        return False


def seconds(value: Any, name: str) -> float:
    """A time above 0."""
    from antiphon.units import parse_seconds

    found = parse_seconds(value, name, bare=True)
    if not found > 0:
        raise Invalid(f"{name}: must be greater than 0 seconds, got {quote(value)}")
    return found


def size(value: Any, name: str) -> int:
    from antiphon.units import parse_size

    return parse_size(value, name)


def ranks(value: Any, name: str) -> list[int]:
    try:
        found = [] if isinstance(value, str | Mapping) else list(islice(value, MOST + 1))
    except TypeError:
        found = []
    if not 0 < len(found) <= MOST:
        raise Invalid(f"{name}: expected the numbers of ranks, such as [0, 1, 4], got {quote(value)}")
    return [whole(0, 2**31)(rank, name) for rank in found]


def links_of(value: Any, name: str) -> list[str]:
    """Links as people name them, in a list or in one text, parted by commas."""
    links = value.split(",") if isinstance(value, str) else value
    if isinstance(links, Mapping) or not isinstance(links, Sequence) or not all(isinstance(x, str) for x in links):
        raise Invalid(f'{name}: expected links such as "0-1,2-3" or ["0-1", "2-3"], got {quote(value)}')
    return [link.strip() for link in links]


def values_of_links(value: Any, name: str) -> dict[str, Any]:
    """By link a value, in a mapping or in one text."""
    if isinstance(value, str):
        from antiphon.options import parse_options

        return dict(parse_options(value.split(","), name, "0-1=0.5"))
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Invalid(f'{name}: expected links with what is left of them, such as {{"0-1": 0.5}}, got {quote(value)}')
    return dict(value)


def options(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Invalid(f'{name}: expected options by name, such as {{"pieces": 4}}, got {quote(value)}')
    return dict(value)


def function(value: Any, name: str) -> Any:
    if not callable(value):
        raise Invalid(f"{name}: expected a function, got {quote(value)}")
    return value


def gibibytes(value: Any, name: str) -> float:
    from antiphon.units import exact

    found = float(exact(value, name))
    if not 0 < found < 2**30:
        raise Invalid(f"{name}: expected GiB above 0, got {quote(value)}")
    return found


def dtype(value: Any, name: str) -> Any:
    from antiphon.core.datatypes import data_type

    return data_type(value).name


def operator(value: Any, name: str) -> str:
    from antiphon.core.datatypes import combine_of

    combine_of(value)
    return str(value)


def several(check: Check) -> Check:
    """One, or several of them, as a list."""

    def checked(value: Any, name: str) -> list[Any]:
        given = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value[:MOST]
        return [check(one, name) for one in given]

    return checked


def effort(value: Any, name: str) -> Any:
    from antiphon.core.request import effort_of

    del name
    return effort_of(value)


def per_byte(value: Any, name: str) -> float:
    """Seconds per byte."""
    from antiphon.units import exact

    found = exact(value, name)
    if not 0 <= found <= 1:
        raise Invalid(f"{name}: expected seconds per byte, such as 4.7e-11, got {quote(value)}")
    return float(found)


def profile(value: Any, name: str) -> Any:
    from antiphon.cost import as_profile

    return as_profile(path(value, name) if isinstance(value, os.PathLike) else value)


CHECKS: Mapping[str, Check] = {
    "apart": yes_or_no, "budget": seconds, "chunks": whole(1, 2**25), "collective": text, "compiler": text,
    "deterministic": yes_or_no, "drop_links": links_of, "drop_ranks": ranks,
    "effort": effort, "factor": whole(2), "few": whole(1), "folder": path,
    "forget": several(text), "heard": function, "hybrid": yes_or_no, "in_place": yes_or_no, "iterations": whole(1),
    "k": whole(0, 10**4), "library": text, "library_only": yes_or_no, "limit": seconds,
    "memory": gibibytes, "miad": yes_or_no, "model": text, "mpiexec": text, "name": text, "nccl": yes_or_no, "on": text,
    "only": ranks, "options": options, "pieces": whole(1, 2**30), "planner": text, "planners": several(text),
    "profile": profile, "progress": function, "proof": yes_or_no, "ranks": ranks, "repeat": whole(1, 10**6),
    "scale": text, "seed": whole(0), "shortlist": whole(0), "slow": values_of_links,
    "steps": whole(1, 10**4), "tables": several(path),
    "tell": function, "timeout": seconds, "trace": path, "verify": yes_or_no, "warmup": whole(0, 10**6),
}  # fmt: skip


def checked(given: Mapping[str, Any], **others: Check) -> dict[str, Any]:
    """The same for options that only some of a function's forms have (None: left out); `others`: checks of those that
    mean something else here."""
    checks = {**CHECKS, **others}
    return {
        name: checks[name](value, name) if name in checks else value
        for name, value in given.items() if value is not None
    }  # fmt: skip


def _unknown_option(function: str, name: str, known: Iterable[str]) -> Invalid:
    error = unknown(f"option of {function}", name, known)
    if name == "only":
        return Invalid(f"{error}; to keep just some ranks of a machine, pass antiphon.topology(NAME, only=[...])")
    return error


def public(function: Callable[P, R]) -> Callable[P, R]:
    """For a function that users call: what it is given is checked, and made plain, by its name (`CHECKS`; None stands
    for "left out" wherever that is the default). A name that it does not have is Invalid, too few or too many arguments
    are Python's TypeError; running out of memory is reported as the commands report it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        import inspect

        signature = inspect.signature(function)
        options = signature.parameters
        takes_any = any(option.kind is option.VAR_KEYWORD for option in options.values())
        for name in kwargs:
            if name not in options and not takes_any:
                raise _unknown_option(function.__name__, name, options)
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which says it with the function's name
        may_lack = {name for name, one in signature.parameters.items() if one.default is None}
        try:
            for name, value in given.arguments.items():
                if name in CHECKS and not (value is None and name in may_lack):
                    given.arguments[name] = CHECKS[name](value, name)
            return function(*given.args, **given.kwargs)
        except MemoryError:
            raise Unsupported(TOO_LARGE) from None

    return call

"""Check the arguments of public functions before any work starts.

An argument name has one meaning, and one check, in all functions: `CHECKS` maps the name to the function that checks
and normalizes its value. The decorator `public` applies it to every argument that is not None, so the functions of this
folder need no checks of their own:

    @public
    def plan(collective, topology, *, budget=None): ...

    plan("allreduce", "dgx1v", budget="60s")     # budget arrives as 60.0
    plan("allreduce", "dgx1v", budget="soon")    # Invalid: budget: expected ...
    plan("allreduce", "dgx1v", bugdet=60)        # Invalid: unknown option of plan: bugdet, did you mean budget?
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from antiphon.deprecations import warn_old
from antiphon.errors import Invalid, Unsupported, quote, unknown

P = ParamSpec("P")
R = TypeVar("R")
MAX_ITEMS = 2**22  # ranks of a group, or values of another list
Check = Callable[[Any, str], Any]  # (value, name of its argument) -> the normalized value, or raises Invalid
TOO_LARGE = (
    "out of memory: the machine, the schedule or the size asked for is too large for this computer; try a smaller one"
)


def whole_number(minimum: int, maximum: int = 2**60) -> Check:
    """Return a check for integers from `minimum` to `maximum`, NumPy's included."""

    def check(value: Any, name: str) -> int:
        try:
            number = int(value.__index__())
        except (AttributeError, TypeError, ValueError):
            number = minimum - 1  # no integer: refused below
        if isinstance(value, bool) or not minimum <= number <= maximum:
            upto = f" to {maximum}" if maximum < 2**60 else ""  # 2^60, the default, is as good as no limit
            raise Invalid(f"{name}: expected a whole number from {minimum}{upto}, got {quote(value)}")
        return number

    return check


def text(value: Any, name: str) -> str:
    """Return a text unchanged."""
    if not isinstance(value, str):
        raise Invalid(f"{name}: expected a text, got {quote(value)}")
    return value


def yes_or_no(value: Any, name: str) -> bool:
    """Return True or False unchanged."""
    if not isinstance(value, bool):
        raise Invalid(f"{name}: expected True or False, got {quote(value)}")
    return value


def path(value: Any, name: str) -> str:
    """Return the name of a file or folder as a string."""
    try:
        file = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if isinstance(file, str) and "\0" not in file:
            os.fsencode(file)
            return file
    except Exception:  # a foreign object whose __fspath__ fails, or a text that no file system encodes
        pass
    raise Invalid(f"{name}: expected the name of a file, got {quote(value)}")


def seconds(value: Any, name: str) -> float:
    """Parse a time; it must be greater than 0."""
    from antiphon.units import parse_seconds

    time = parse_seconds(value, name, bare=True)
    if not time > 0:
        raise Invalid(f"{name}: must be greater than 0 seconds, got {quote(value)}")
    return time


def size(value: Any, name: str) -> int:
    """Parse a size such as "64MiB" to bytes."""
    from antiphon.units import parse_size

    return parse_size(value, name)


def ranks(value: Any, name: str) -> list[int]:
    """Return the numbers of ranks as a list."""
    try:
        numbers = [] if isinstance(value, str | Mapping) else list(islice(value, MAX_ITEMS + 1))
    except TypeError:
        numbers = []
    if not 0 < len(numbers) <= MAX_ITEMS:
        raise Invalid(f"{name}: expected the numbers of ranks, such as [0, 1, 4], got {quote(value)}")
    return [whole_number(0, 2**31)(rank, name) for rank in numbers]


def links_of(value: Any, name: str) -> list[str]:
    """List links by name, from a list or from "LINK,LINK,..."."""
    links = value.split(",") if isinstance(value, str) else value
    if isinstance(links, Mapping) or not isinstance(links, Sequence) or not all(isinstance(x, str) for x in links):
        raise Invalid(f'{name}: expected links such as "0-1,2-3" or ["0-1", "2-3"], got {quote(value)}')
    return [link.strip() for link in links]


def values_of_links(value: Any, name: str) -> dict[str, Any]:
    """Parse a value per link, from a mapping or from "LINK=VALUE,..."."""
    if isinstance(value, str):
        from antiphon.options import parse_options

        return dict(parse_options(value.split(","), name, "0-1=0.5"))
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Invalid(f'{name}: expected links with factors or bandwidths, such as {{"0-1": 0.5}}, got {quote(value)}')
    return dict(value)


def options(value: Any, name: str) -> dict[str, Any]:
    """Return options by name as a dictionary."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise Invalid(f'{name}: expected options by name, such as {{"pieces": 4}}, got {quote(value)}')
    return dict(value)


def function(value: Any, name: str) -> Any:
    """Return a function unchanged."""
    if not callable(value):
        raise Invalid(f"{name}: expected a function, got {quote(value)}")
    return value


def gibibytes(value: Any, name: str) -> float:
    """Parse a number of GiB above 0."""
    from antiphon.units import exact

    memory = float(exact(value, name))
    if not 0 < memory < 2**30:  # 2^60 bytes, far above any machine
        raise Invalid(f"{name}: expected GiB above 0, got {quote(value)}")
    return memory


def dtype(value: Any, name: str) -> Any:
    """Return the canonical name of a data type."""
    from antiphon.core.datatypes import data_type

    return data_type(value).name


def operator(value: Any, name: str) -> str:
    """Return the name of an operator that exists."""
    from antiphon.core.datatypes import combine_of

    combine_of(value)  # raises Invalid for an unknown one
    return str(value)


def several(check: Check) -> Check:
    """Return a check that applies `check` to one value or to each of several, and returns a list."""

    def check_all(value: Any, name: str) -> list[Any]:
        values = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        if len(values) > MAX_ITEMS:
            raise Invalid(f"{name}: {len(values)} values, at most {MAX_ITEMS} are possible")
        return [check(item, name) for item in values]

    return check_all


def effort(value: Any, name: str) -> Any:
    """Parse the limit of a search, in counted units."""
    from antiphon.core.request import effort_of

    del name
    return effort_of(value)


def per_byte(value: Any, name: str) -> float:
    """Parse a cost in seconds per byte."""
    from antiphon.units import exact

    time = exact(value, name)
    if not 0 <= time <= 1:
        raise Invalid(f"{name}: expected seconds per byte, such as 4.7e-11, got {quote(value)}")
    return float(time)


def profile(value: Any, name: str) -> Any:
    """Return a profile from an object, its file or the name of a shipped one."""
    from antiphon.cost import as_profile

    return as_profile(path(value, name) if isinstance(value, os.PathLike) else value)


# Maxima are far above what is useful, so that a wrong argument fails at once.
CHECKS: Mapping[str, Check] = {
    "budget": seconds, "chunks": whole_number(1, 2**25), "collective": text,
    "compiler": text, "deterministic": yes_or_no, "drop_links": links_of, "drop_nics": links_of, "drop_ranks": ranks,
    "effort": effort, "factor": whole_number(2), "folder": path,
    "hybrid": yes_or_no, "in_own_process": yes_or_no, "in_place": yes_or_no, "iterations": whole_number(1),
    "k": whole_number(0, 10**4), "library": text, "library_only": yes_or_no, "limit": seconds, "logs": path,
    "lowering": text, "memory": gibibytes, "miad": yes_or_no, "model": text, "mpiexec": text, "name": text,
    "nccl": yes_or_no, "on": text, "on_point": function, "only": ranks, "options": options,
    "pieces": whole_number(1, 2**30),
    "planner": text, "planners": several(text), "profile": profile, "progress": function, "proof": yes_or_no,
    "ranks": ranks, "repeat": whole_number(1, 10**6), "scale": text, "seed": whole_number(0),
    "shortlist": whole_number(0), "shortlisted": whole_number(1), "slow": values_of_links,
    "steps": whole_number(1, 10**4), "tables": several(path),
    "timeout": seconds, "trace": path, "verify": yes_or_no, "warmup": whole_number(0, 10**6),
}  # fmt: skip


# Annotation (a text, as annotations are not evaluated) of a collective that the function reads itself, as it needs the
# machine for that; elsewhere the argument `collective` is a name in a table, and checked as a text.
READ_BY_FUNCTION = "CollectiveLike"
# Keywords of the version before -> the new ones
OLD_KEYWORDS: Mapping[str, str] = {
    "apart": "in_own_process", "few": "shortlisted", "heard": "on_point", "most": "max_vectors", "tell": "progress",
    "wanted": "collective",
}  # fmt: skip


def checked(options: Mapping[str, Any], **own_checks: Check) -> dict[str, Any]:
    """Check options by name, and leave out those that are None. `own_checks` replace the checks of these names."""
    checks = {**CHECKS, **own_checks}
    return {
        name: checks[name](value, name) if name in checks else value
        for name, value in options.items() if value is not None
    }  # fmt: skip


def _unknown_option(function: str, name: str, options: Iterable[str]) -> Invalid:
    """Return the error for an option that a function does not have, with advice for a frequent mistake."""
    error = unknown(f"option of {function}", name, options)
    if name == "only":
        return Invalid(f"{error}; to keep just some ranks of a machine, pass antiphon.topology(NAME, only=[...])")
    return error


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Check and normalize the arguments of a function that users call, by name (`CHECKS`).

    None means "left out" wherever that is the default. An unknown option is Invalid, too few or too many arguments are
    Python's TypeError. Running out of memory is reported as by the commands.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        import inspect

        signature = inspect.signature(function)
        parameters = signature.parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        for name in list(kwargs):
            new_name = OLD_KEYWORDS.get(name, "")
            if name not in parameters and new_name in parameters and new_name not in kwargs:
                warn_old(f"{name}=... of {function.__name__}", f"{new_name}=...")
                kwargs[new_name] = kwargs.pop(name)
            elif name not in parameters and not takes_any:
                raise _unknown_option(function.__name__, name, parameters)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises TypeError again, with the name of the function
        try:
            for name, value in bound.arguments.items():
                is_left_out = value is None and parameters[name].default is None
                is_read = parameters[name].annotation == READ_BY_FUNCTION
                if name in CHECKS and not is_left_out and not is_read:
                    bound.arguments[name] = CHECKS[name](value, name)
            return function(*bound.args, **bound.kwargs)
        except MemoryError:
            raise Unsupported(TOO_LARGE) from None

    return call

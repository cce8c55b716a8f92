"""Look up topologies, planners, models, back ends and runtimes in their tables.

A table maps a name to an `Entry` whose function is imported only when it is used. A folder's `table.py` holds
the built-in entries; other packages add theirs through entry points named `antiphon.<kind>`.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, get_args, get_type_hints, overload

from antiphon.core.collective import Collective
from antiphon.deprecations import warn_old
from antiphon.errors import Invalid, Unsupported, quote, unknown
from antiphon.options import Option

if TYPE_CHECKING:
    from antiphon.core.transform import Cuts

# by kind of entry, the folder of this package whose table.py lists the built-in ones
KINDS = {"topology": "topologies", "planner": "planners", "model": "cost", "backend": "formats", "runtime": "runtimes"}


@dataclass(frozen=True)
class PlannerCapabilities:
    """What a planner supports, and how `tune` uses it."""

    collectives: tuple[str, ...]  # names of collectives, "custom" among them
    topologies: str = "any"  # which machines, as a phrase for listings and errors
    sweep: tuple[Mapping[str, Any], ...] = ({},)  # option sets that `tune` tries, the defaults ({}) first
    effort: float = 10.0  # CPU time to plan and verify on many ranks; 1.0: as if for one transfer per pair of ranks
    tuned: bool | tuple[str, ...] = True  # whether, or for which collectives, `tune` uses it without being asked
    tuned_from: int = 1  # ranks; on smaller machines `tune` uses it only by name
    # False: where every two ranks are joined (by a link, or by switches alone), `tune` uses it only by name
    tuned_joined: bool = True
    sizes: bool = False  # plans differ by message size, so `tune` requests several sizes
    timed: bool = False  # its steps only order sends, so `tune` uses it only under models without barriers
    in_switches: bool = False  # all its schedules let switches multicast or reduce: only for machines that can
    joined: bool = False  # every two members must be joined: by a link, or by switches alone
    most: Mapping[str, int] = field(default_factory=dict)  # maximum number of ranks, by collective
    composes: bool = False  # it combines plans of other planners, and is not itself used for groups
    costly: bool = False  # too slow to be used for groups unless named
    # plans an ordered collective (`Collective.ordered`: contributions are combined in the order of their ids); of other
    # planners only the schedules that keep the order anyway count
    ordered: bool = False
    process: bool = False  # `tune` must run it in its own process, because it stays in C code, where no signal stops it


@dataclass(frozen=True)
class ModelCapabilities:
    """What a cost model prices."""

    collectives: str = "all"  # a phrase for listings
    topologies: str = "all"  # a phrase for listings
    trace: bool = False  # it can also return a timeline of the schedule
    in_switches: bool = False  # it prices schedules in which switches multicast or reduce
    limits_pieces: bool = False  # it simulates every piece, up to a limit (cost/pieces.py)
    barriers: bool = True  # a step begins when the one before has ended everywhere
    needs: ClassVar = ("profile",)  # keyword parameters that the caller sets, which are no options


@dataclass(frozen=True)
class BackendCapabilities:
    """What a back end writes."""

    collectives: tuple[str, ...] | Literal["all"] = "all"  # names of collectives
    topologies: str = ""  # which machines, as a phrase for listings
    # keyword parameters that are no options: ("nbytes",) if it writes the messages of one size
    needs: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # patterns of the file names
    suffix: str = ""  # a plan of one schedule may be written to a file that ends so, instead of a folder
    tables: bool = False  # it writes all plans of a table at once and takes them by collective
    replaces: bool = False  # a runtime runs the files in the place of a GPU library's own choice
    modules: tuple[str, ...] = ()  # Python modules that must be installed
    programs: tuple[str, ...] = ()  # programs that must be installed


@dataclass(frozen=True)
class RuntimeCapabilities:
    """What a runtime supports."""

    library: str = ""  # the library whose own collectives are measured for comparison; "": none
    options: tuple[str, ...] = ()  # the options of `runtimes.measure.case.How` that it supports
    modules: tuple[str, ...] = ()  # Python modules that must be installed
    programs: tuple[str, ...] = ()  # programs that must be installed
    in_place: tuple[str, ...] | Literal["all"] = "all"  # the collectives that it runs in place
    use: str = ""  # how programs use a table that was measured with it, with {table} and {ranks}
    cuts: Cuts | None = None  # how it cuts messages whose schedule sets no pieces; None: not at all
    algorithms: bool = False  # the library's own algorithm can be selected (tune --library-only)
    trace: bool = False  # it can record a run (--trace)
    in_switches: bool = False  # its switches can multicast and reduce; if not, `tune` omits such schedules


@dataclass(frozen=True)
class TopologyCapabilities:
    """What a family of machines offers."""

    ranks: str = ""  # which sizes, as a phrase for listings
    example: str = ""  # a small machine, for tests, documents and shell completion; "": the name alone


C_co = TypeVar("C_co", covariant=True)


@dataclass(frozen=True)
class Entry(Generic[C_co]):
    """What a table states about a name, known without importing the function."""

    where: str  # the function, as "module:function"
    about: str  # one sentence for listings
    can: C_co  # what the function supports

    @property
    def is_builtin(self) -> bool:
        """Return whether the entry is of this package."""
        return self.where.startswith("antiphon.")

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """Return the options by name: the keyword-only parameters of the function, which is imported for this."""
        set_by_caller = getattr(self.can, "needs", ())  # only models and back ends declare such parameters
        return {name: p for name, p in keyword_parameters(self.load()).items() if name not in set_by_caller}

    def load(self) -> Callable[..., Any]:
        """Import the function and return it."""
        module, _, function = self.where.partition(":")
        target: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return target


CAPABILITIES: Mapping[str, type[Any]] = {
    "topology": TopologyCapabilities, "planner": PlannerCapabilities, "model": ModelCapabilities,
    "backend": BackendCapabilities, "runtime": RuntimeCapabilities,
}  # fmt: skip


@overload
def table(kind: Literal["topology"]) -> Mapping[str, Entry[TopologyCapabilities]]: ...
@overload
def table(kind: Literal["planner"]) -> Mapping[str, Entry[PlannerCapabilities]]: ...
@overload
def table(kind: Literal["model"]) -> Mapping[str, Entry[ModelCapabilities]]: ...
@overload
def table(kind: Literal["backend"]) -> Mapping[str, Entry[BackendCapabilities]]: ...
@overload
def table(kind: Literal["runtime"]) -> Mapping[str, Entry[RuntimeCapabilities]]: ...
@overload
def table(kind: str) -> Mapping[str, Entry[Any]]: ...
@cache
def table(kind: str) -> Mapping[str, Entry[Any]]:
    """Return all entries of a kind: the built-in ones, then those of installed packages, which may not replace them."""
    entries: dict[str, Entry[Any]] = dict(importlib.import_module(f"antiphon.{KINDS[kind]}.table").TABLE)
    for point in entry_points(group=f"antiphon.{kind}"):
        entry = point.load()
        where = f"the installed package entry point antiphon.{kind}:{point.name}"
        if point.name in entries:
            raise Invalid(f"{where} has a name that is taken; remove that package, or let it choose another name")
        if not isinstance(entry, Entry):
            raise Invalid(f"{where} is not an antiphon.registry.Entry; remove or fix that package")
        entries[point.name] = replace(entry, can=_read_capabilities(kind, entry.can, where))
    return entries


def _read_capabilities(kind: str, declared: object, where: str) -> Any:
    """Return the capabilities of an installed package's entry; the dictionary of the previous version is converted."""
    expected = CAPABILITIES[kind]
    if isinstance(declared, expected):
        return declared
    if not isinstance(declared, Mapping):
        raise Invalid(f"{where}: expected antiphon.registry.{expected.__name__}, got {quote(declared)}")
    names = [declaration.name for declaration in fields(expected)]
    # "options" was a key then; now options are the function's parameters (a runtime still lists the names of its own)
    capabilities = {str(key): value for key, value in declared.items() if key != "options" or key in names}
    for key in capabilities:
        if key not in names:
            raise unknown(f"capability of {where}", key, names)
    warn_old(f"a dictionary as the capabilities of {where}", f"antiphon.registry.{expected.__name__}(...)")
    return expected(**capabilities)


@overload
def find(kind: Literal["topology"], name: str) -> Entry[TopologyCapabilities]: ...
@overload
def find(kind: Literal["planner"], name: str) -> Entry[PlannerCapabilities]: ...
@overload
def find(kind: Literal["model"], name: str) -> Entry[ModelCapabilities]: ...
@overload
def find(kind: Literal["backend"], name: str) -> Entry[BackendCapabilities]: ...
@overload
def find(kind: Literal["runtime"], name: str) -> Entry[RuntimeCapabilities]: ...
@overload
def find(kind: str, name: str) -> Entry[Any]: ...
def find(kind: str, name: str) -> Entry[Any]:
    """Return the entry of a name; Invalid, with similar names, if there is none."""
    entries = table(kind)
    if name not in entries:
        plural = "models" if kind == "model" else KINDS[kind]  # the folder has the name that `list` takes
        label = "format" if kind == "backend" else kind  # as users know it
        raise unknown(label, name, entries, listed_by=f"antiphon list {plural}")
    return entries[name]


def effort_of_planner(name: str, entry: Entry[PlannerCapabilities]) -> float:
    """Return the relative effort that a planner's entry declares; Invalid if that is no number above 0."""
    effort = entry.can.effort
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < math.inf:
        raise Invalid(f"planner {name}: can.effort of its entry: expected a number above 0, got {quote(effort)}")
    return float(effort)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Return the parameters; remembered, as a tuner calls the same model for thousands of schedules."""
    return tuple(inspect.signature(function).parameters.values())


def keyword_parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters by name."""
    return {p.name: p for p in _parameters(function) if p.kind is inspect.Parameter.KEYWORD_ONLY}


@cache
def declared_options(function: Callable[..., Any]) -> Mapping[str, tuple[Any, Option]]:
    """Return the type and the `Option` of each keyword-only parameter that declares an option."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # a package annotates with names that only type checkers import
        return {}
    annotated = {name: get_args(hints[name]) for name in keyword_parameters(function) if name in hints}
    # Annotated[TYPE, Option(...)]
    return {name: (args[0], args[-1]) for name, args in annotated.items() if args and isinstance(args[-1], Option)}


def refuse_unknown_options(
    kind: str, name: str, function: Callable[..., Any], options: Iterable[str], set_by_caller: Container[str] = ()
) -> None:
    """Raise Invalid if the function lacks one of these options. A function that takes **options accepts any.

    `set_by_caller`: keyword parameters of the function that are no options.
    """
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in _parameters(function)):
        return
    available = [key for key in keyword_parameters(function) if key not in set_by_caller]
    for key in options:
        if not available:
            raise Invalid(f"{kind} {name} takes no options, got {quote(key)}")
        if key not in available:
            raise unknown(f"option of {kind} {name}", key, available)


def call(kind: str, name: str, function: Callable[..., Any], options: Mapping[str, Any], *args: Any) -> Any:
    """Call a table's function with keyword options; Invalid names unknown and missing ones and values out of range.

    A function that takes **options accepts any.
    """
    keywords = keyword_parameters(function)
    refuse_unknown_options(kind, name, function, options)
    needed = [k for k, p in keywords.items() if p.default is inspect.Parameter.empty and k not in options]
    if needed:
        raise Invalid(f"{kind} {name} needs {', '.join(needed)}; for example {name}:{needed[0]}=8")
    declared = declared_options(function)
    checked = dict(options)
    for key in options:
        if key in declared:
            value_type, option = declared[key]
            checked[key] = option.check(key, options[key], value_type)
    return function(*args, **checked)


def refuse_unless_able(name: str, entry: Entry[PlannerCapabilities], collective: Collective) -> None:
    """Raise Unsupported, naming planners that can, unless the planner declares this collective."""
    supported = entry.can.collectives
    if collective.kind not in supported:
        able_planners = [
            other for other, candidate in table("planner").items() if collective.kind in candidate.can.collectives
        ]
        advice = f"planners that can: {', '.join(able_planners)}" if able_planners else "no planner here can yet"
        raise Unsupported(f"planner {name} does not plan {collective.kind} (it plans {', '.join(supported)}); {advice}")

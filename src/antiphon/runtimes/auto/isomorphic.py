"""Cache plans by machine up to isomorphism, so that other allocations of the same cluster find them.

The key is a hash of the machine's canonical form (a canonical graph labelling). The file contains the plans for the
first such machine, in its numbers, and their predicted gain as text; on a hit, the composition of the two canonical
labellings renumbers them:

    allocation A: GPUs 0 1 4 5  -> canonical form X, plans saved
    allocation B: GPUs 2 3 6 7  -> canonical form X, plans relabelled 0>2, 1>3, 4>6, 5>7

Files are not trusted: `renumber_plan` verifies every schedule on the requesting machine. The programs of the schedules
are proven when the caller makes a book of the plans (`make_book` in serve/book.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from antiphon import __version__
from antiphon.core.files import is_ours, read_bytes
from antiphon.core.plan import Plan
from antiphon.core.serialize import dumps, loads
from antiphon.core.symmetry import canonical
from antiphon.core.topology import Topology
from antiphon.errors import AntiphonError, Invalid
from antiphon.runtimes.serve.files import write_cache_file
from antiphon.select.renumber_plans import renumber_plan

CACHE_SUFFIX = ".alike"
FORMAT = 1  # of the file
MAX_BYTES = 2**26  # of the file


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    gain: str  # in words
    plans: list[msgspec.Raw]  # each as in a plan file


def path_of(machine: Topology, folder: Path) -> Path:
    """Return the file of a machine. Keys depend on the release of the graph library, and plans on ours."""
    text = repr((FORMAT, __version__, metadata.version("igraph"), canonical(machine).key))
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()}{CACHE_SUFFIX}"


def cache_plans(machine: Topology, plans: Sequence[Plan], gain: str, folder: Path) -> None:
    """Write the file of a machine, unless it is too large. `gain`: the predicted gain of the plans, in words."""
    data = msgspec.json.encode(_File(FORMAT, gain, [msgspec.Raw(dumps(plan)) for plan in plans]))
    if len(data) <= MAX_BYTES:
        write_cache_file(data, path_of(machine, folder))


def find_plans(machine: Topology, folder: Path) -> tuple[list[Plan], str] | None:
    """Return the cached plans in the numbers of this machine, and their gain; None without a file.

    Invalid, with the reason, if the file cannot be used."""
    path = path_of(machine, folder)
    if not path.exists():
        return None
    if not is_ours(folder, folder=True) or not is_ours(path):
        raise Invalid(f"{path.name} is not trusted: others may write there")
    try:
        file = msgspec.json.decode(read_bytes(path, MAX_BYTES), type=_File)
        plans = [loads(bytes(raw), path.name) for raw in file.plans]
    except (AntiphonError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"{path.name} is damaged: {error}") from None
    if file.format != FORMAT or not plans:
        raise Invalid(f"{path.name} is damaged: it holds no plans")
    return [_plan_on(machine, plan, path.name) for plan in plans], file.gain


def _plan_on(machine: Topology, plan: object, name: str) -> Plan:
    """Return the plan in the numbers of this machine, verified on it."""
    if not isinstance(plan, Plan):
        raise Invalid(f"{name} is damaged: it holds what is no plan")
    try:
        return renumber_plan(plan, machine, canonical(plan.topology), canonical(machine))
    except Invalid as error:
        raise Invalid(f"{name} is damaged: {error}") from None

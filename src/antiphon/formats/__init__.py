"""Back ends that write plans in file formats of other programs, and readers of such files.

A *back end* is a function that writes one format; each has a folder or file here, and a line in table.py. `emit`
returns its files, `export` writes them into a folder; command line and API call these. Readers are in the same folders.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antiphon.core.plan import Plan
from antiphon.errors import Invalid, Missing, Unsupported, quote
from antiphon.formats.files import FileContent, Files, Written, write_files
from antiphon.registry import BackendCapabilities, Entry, RuntimeCapabilities, call, find

__all__ = ["emit", "export", "find_format", "lacks", "names_file", "refuse_chooser", "write_emitted"]


def lacks(entry: Entry[BackendCapabilities] | Entry[RuntimeCapabilities]) -> str:
    """Return what must be installed before a back end or runtime can be used; "" if nothing. It imports nothing."""
    modules = [name for name in entry.can.modules if importlib.util.find_spec(name) is None]
    programs = [name for name in entry.can.programs if shutil.which(name) is None]
    return ", ".join([*(f"Python package {name}" for name in modules), *(f"program {name}" for name in programs)])


def refuse_chooser(library: str) -> None:
    """Raise Unsupported if `library` takes no schedules; the message names the format that configures its choice."""
    from antiphon.formats.lint.table import CHOOSERS

    if library.lower() in CHOOSERS:
        raise Unsupported(
            f"{library[:60]} takes no schedules, it only chooses among its own algorithms; "
            f"antiphon export PLAN --to {CHOOSERS[library.lower()]} writes which of them to use"
        )


def find_format(name: str) -> Entry[BackendCapabilities]:
    """Return the entry of a format. Invalid if there is none of that name.

    The name of a library (nccl) is none: that error names the format which configures the library's own choice, if any.
    """
    try:
        return find("backend", name)
    except Invalid:
        refuse_chooser(name)
        if name in ("nccl-xml", "nccl-topo"):
            raise Unsupported(
                "NCCL's topology file describes a machine, no plan; antiphon topology export BOX -o topo.xml writes it"
            ) from None
        raise


def emit(
    plan: Plan | Mapping[str, Plan], name: str, *, nbytes: int | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Files[FileContent]:  # fmt: skip
    """Return the files of a plan as a back end writes them, by name: text, bytes, or an iterable of bytes to be joined.

    Back ends that write whole tables also take plans for one machine, by collective. `nbytes`: the size of the call,
    for back ends that write messages (goal, chakra); the others write all sizes and refuse it. `options`: the back
    end's own, by name.
    """
    entry = find_format(name)
    missing = lacks(entry)
    if missing:
        raise Missing(f"format {name} needs {missing}; install it first")
    plans = {plan.collective.kind: plan} if isinstance(plan, Plan) else dict(plan)
    kinds = entry.can.collectives
    for kind in plans:
        if kinds != "all" and kind not in kinds:
            raise Unsupported(f"format {name} does not write {kind} (it writes {', '.join(kinds)})")
    if not entry.can.tables and len(plans) != 1:
        raise Invalid(f"format {name} writes one plan, got {len(plans)}; choose one of them")
    arguments = dict(options or {})
    if "nbytes" in entry.can.needs:
        if "nbytes" in arguments or nbytes is None:  # it is a parameter of its own, not an option
            raise Invalid(f"format {name} writes the messages of one size: pass nbytes, such as 64MiB")
        arguments["nbytes"] = nbytes
    elif nbytes is not None:
        raise Invalid(f"format {name} writes what is right for every size; leave nbytes out")
    files = call("format", name, entry.load(), arguments, plans if entry.can.tables else next(iter(plans.values())))
    if not isinstance(files, dict) or not files:
        raise RuntimeError(f"format {name} gave {quote(files)}, not a dictionary of files")
    return files if isinstance(files, Files) else Files(files)


def export(
    plan: Plan | Mapping[str, Plan],
    name: str,
    folder: str | os.PathLike[str],
    *,
    nbytes: int | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Written:
    """Write a plan as files into a folder, all or none; return their paths and sizes in bytes, with notes.

    `nbytes`, `options`: as for `emit`.
    """
    files = emit(plan, name, nbytes=nbytes, options=options)
    return Written(write_emitted(files, name, folder), files.notes, files.purposes)


def write_emitted(
    files: Mapping[str, FileContent], name: str, folder: str | os.PathLike[str]
) -> list[tuple[Path, int]]:
    """Write the files of a back end, all or none; return their paths and sizes in bytes.

    If it writes a single file, `folder` may name it (names_file).
    """
    into = Path(folder)
    if not names_file(name, into):
        return write_files(folder, files)
    if len(files) > 1:
        raise Invalid(f"{into}: the plan has {len(files)} schedules, a file for each; name a folder")
    return write_files(into.parent, {into.name: next(iter(files.values()))})


def names_file(name: str, path: Path) -> bool:
    """Return whether a path is a file that this back end writes, not a folder for its files."""
    suffix = find_format(name).can.suffix
    return bool(suffix) and path.name.endswith(suffix) and not path.is_dir()

"""Load and save files, whose type follows from their content, and export plans to other programs."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from antiphon.api import _inputs
from antiphon.api._checked import path as path_of
from antiphon.api._checked import public
from antiphon.errors import Invalid, quote

if TYPE_CHECKING:
    from antiphon.api._kinds import Path, PlanLike, Size
    from antiphon.formats.files import Files, Written

T = TypeVar("T")
HEAD_BYTES = 2**16  # beginning of a file in which its kind is looked for: longer than comments before the first element


@overload
def load(path: Path) -> Any: ...


@overload
def load(path: Path, kind: type[T]) -> T: ...


@public
def load(path: Path, kind: type[Any] | None = None) -> Any:
    """Load any file of this project or of a supported program.

    The type follows from the content: a Topology, a Collective, a Plan, a Profile; for a table its plans by collective;
    for programs and books their content; for CSV of measurements their rows; for PICCL's XML a schedule (a Plan if
    Antiphon wrote it), or a machine with its profile; for MSCCL's XML and plans of MSCCL++ a verified
    Plan without a machine. All other plans are not verified: call `verify`.

    Parameters
    ----------
    path
        The file, plain or compressed.
    kind
        The expected type, such as antiphon.Plan. A table of one plan counts as a Plan.

    Returns
    -------
    object
        The content.

    Raises
    ------
    Invalid
        The file is of no known format, is damaged, or holds another type than `kind`.

    Examples
    --------
    >>> import tempfile
    >>> from antiphon.api.plans import plan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(plan("allreduce", "ring:ranks=4"), f"{folder}/plan.json")
    ...     kind = load(f"{folder}/plan.json").collective.kind
    >>> kind
    'allreduce'
    """
    name = path_of(path, "path")
    content = _read_file(name)
    if kind is None:
        return content
    if not isinstance(kind, type):
        raise Invalid(f"kind: expected a type, such as antiphon.Plan, got {quote(kind)}")
    only_plan = next(iter(content.values())) if isinstance(content, dict) and len(content) == 1 else content
    for value in (content, only_plan):
        if isinstance(value, kind):
            return value
    raise Invalid(f"{name}: holds a {type(content).__name__}; a {kind.__name__} is needed here")


def _read_file(name: str) -> Any:
    """Return the content of a file, whose type follows from its first bytes: a magic number, XML, JSON, else CSV."""
    from antiphon.core.files import read_bytes, reading
    from antiphon.core.program import codec
    from antiphon.formats.foreign import reader_of
    from antiphon.runtimes.serve import book

    with reading(name):
        data = read_bytes(name)
        if data.startswith(codec.MAGIC):
            return codec.decode(data)
        if data.startswith(book.MAGIC):
            return book.proven_book(data)  # refuses a book with a program that it cannot prove
    if reader_of(data) is not None:
        return _read_foreign(name, data)
    start = data[:HEAD_BYTES].removeprefix(codecs.BOM_UTF8).lstrip()
    if start.startswith(b"<"):
        return _read_piccl(name, data)
    return _read_json(name, data) if start.startswith((b"{", b"[")) else _read_measurements(name, data)


def _read_foreign(name: str, data: bytes) -> Any:
    """Read a file for a GPU runtime as a verified plan without a machine."""
    from antiphon.core.files import reading
    from antiphon.formats.foreign import check_correct, plan_of, reader_of

    reader = reader_of(data)
    assert reader is not None
    with reading(name):
        written = reader(data, os.path.basename(name))
        check_correct(written)
        return plan_of(written)


def _read_json(name: str, data: bytes) -> Any:
    """Read a table, a profile, or any other JSON file of ours, by its field `format`."""
    from antiphon.core.files import reading
    from antiphon.core.jsontext import decode
    from antiphon.core.serialize import loads
    from antiphon.core.serialize.schemas import FileHead
    from antiphon.cost import PROFILE, load_profile
    from antiphon.select import TABLE, load_plans

    with reading(name):
        head = decode(data, FileHead).format
    if head == TABLE:
        return load_plans(name)
    return load_profile(name) if head == PROFILE else loads(data, name)


def _read_piccl(name: str, data: bytes) -> Any:
    """Read PICCL's XML: a topology, or a schedule (a plan if Antiphon wrote it)."""
    from antiphon.formats.piccl.readers import read_schedule, read_topology

    if re.search(rb"<\s*topo\b", data[:HEAD_BYTES]):
        return read_topology(name)
    schedule = read_schedule(name)
    return schedule if schedule.plan is None else schedule.verifiable()


def _read_measurements(name: str, data: bytes) -> Any:
    """Read CSV of measurements; their kind is recognized by the column names."""
    from antiphon.cost.fit import read_addition_times, read_plan_times, read_round_trips
    from antiphon.formats.piccl.readers import read_figures

    lines = (line.strip() for line in data[:HEAD_BYTES].decode("utf-8", "replace").splitlines())
    head = next((line for line in lines if line and not line.startswith("#")), "").removeprefix("\ufeff")
    columns = {column.strip() for column in head.split(",")}
    for column, read in (  # a column that only this kind of file has
        ("ranks", read_plan_times),
        ("vectors", read_addition_times),  # seconds of adding vectors, for `fit memory`
        ("kind", read_round_trips),
        ("o_s", read_figures),  # parameters of LogGP, as PICCL reads them
    ):
        if column in columns:
            return read(name)
    if "PRTT(" in head:  # a table of LogGP's prototype (cost/fit/loggp_tables.py)
        return read_round_trips(name)
    raise Invalid(
        f"{name}: is no file of ours: neither JSON (topology, collective, plan, table, profile), nor a program, a "
        "book, PICCL's XML, or CSV of measurements"
    )


@public
def save(value: Any, path: Path) -> None:
    """Write a file that `load` reads, completely or not at all.

    Parameters
    ----------
    value
        A Topology, Collective, Plan or Profile; a result of `tune`, `tune_family` (into a directory) or `frontier`;
        plans by collective, as a table; programs of one schedule; a book; or rows of measurements.
    path
        The file; a name that ends in .gz is compressed.

    Raises
    ------
    Invalid
        Values of this type cannot be saved.
    """
    from antiphon.core.files import write_bytes

    name = path_of(path, "path")
    if _inputs.is_own_type(value) and callable(getattr(value, "save", None)):
        value.save(name)
    elif isinstance(value, Mapping):
        from antiphon.select import save_plans

        save_plans(name, _inputs.plans(value, "value"), table=True)
    elif not _save_rows(value, name):
        write_bytes(name, _encode_value(value))


def _encode_value(value: Any) -> bytes:
    """Return the content of the file of one object."""
    from antiphon.core.collective import Collective
    from antiphon.core.jsontext import layout
    from antiphon.core.plan import Plan
    from antiphon.core.program import Program, encode
    from antiphon.core.serialize import dumps
    from antiphon.core.topology import Topology
    from antiphon.cost import Profile
    from antiphon.runtimes.serve.book import Book, encode_book

    if isinstance(value, Topology | Collective | Plan):
        return dumps(value)
    if isinstance(value, Profile):
        return layout(value.as_json()) + b"\n"
    if isinstance(value, Book):
        return encode_book(value)
    programs = [value] if isinstance(value, Program) else value
    if isinstance(programs, list | tuple) and programs and all(isinstance(program, Program) for program in programs):
        return encode(programs)
    raise Invalid(f"value: {quote(value)} cannot be saved; save a result of load, plan, tune, frontier or bench")


def _save_rows(value: Any, name: str) -> bool:
    """Write measurements; False if the value is something else."""
    from antiphon.cost import fit

    writers: dict[type, Any] = {
        fit.PlanTime: fit.write_plan_times, fit.AdditionTime: fit.write_addition_times,
        fit.RoundTrip: fit.write_round_trips,
    }  # fmt: skip
    if not isinstance(value, list | tuple) or not value:
        return False
    for kind, write in writers.items():
        if all(isinstance(row, kind) for row in value):
            write(value, name)
            return True
    return False


@overload
def export(
    plan: PlanLike, name: str, folder: None = None, *, nbytes: Size | None = None,
    options: Mapping[str, Any] | None = None, collective: str = "",
) -> Files[bytes]: ...  # fmt: skip


@overload
def export(
    plan: PlanLike, name: str, folder: Path, *, nbytes: Size | None = None,
    options: Mapping[str, Any] | None = None, collective: str = "",
) -> Written: ...  # fmt: skip


@public
def export(
    plan: PlanLike,
    name: str,
    folder: Path | None = None,
    *,
    nbytes: Size | None = None,
    options: Mapping[str, Any] | None = None,
    collective: str = "",
) -> Files[bytes] | Written:
    """Export a plan to the format of another program.

    A plan that is wrong is not written.

    Parameters
    ----------
    plan
        A plan, its file, or the result of `tune`; for formats that write whole tables, all plans of a table.
    name
        The format (`antiphon.available.formats()`): "goal", "piccl-xml", ...
    folder
        Write the files there, all or none; it is created if it does not exist. Default: return their content.
    nbytes
        The message size, for formats that write the messages of one size.
    options
        Options of the format.
    collective
        Of several plans, the one for this collective.

    Returns
    -------
    Files or Written
        Content by file name; with `folder`, the number of bytes by path. Both have `.notes`: what was omitted and why,
        which schedules the format cannot express and which of the tuning's next best candidates replace them, and the
        rules written for a library's own algorithms.

    Raises
    ------
    Infeasible
        The plan is wrong.
    Unsupported
        The format cannot express the plan.

    Examples
    --------
    >>> from antiphon.api.plans import plan
    >>> list(export(plan("allreduce", "ring:ranks=4"), "goal", nbytes="1MB"))
    ['schedule.goal']
    """
    from antiphon.formats import files as format_files
    from antiphon.formats import find_format, write_emitted
    from antiphon.select.runners_up import emit_with_runners_up

    tables = find_format(name).can.tables
    verify_input = _inputs.verified_plans if tables else _inputs.verified_plan
    verified: Any = verify_input(plan, collective, use="written")  # a wrong plan "is not written", says its error
    plans = verified if tables else {verified.collective.kind: verified}
    emitted, _, notes = emit_with_runners_up(plans, name, nbytes, options)
    if folder is not None:
        written = write_emitted(emitted, name, os.fspath(folder))
        return format_files.Written(written, [*notes, *emitted.notes], emitted.purposes)
    texts = {file: text.encode() if isinstance(text, str) else b"".join((text,) if isinstance(text, bytes) else text)
             for file, text in emitted.items()}  # fmt: skip
    return format_files.Files(texts, [*notes, *emitted.notes], emitted.purposes)

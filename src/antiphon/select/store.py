"""A store of plans: the answers of `tune`, reused on every machine that is isomorphic (the same but for numbering).

The address of an answer is a hash of the question: the machine's canonical labelling (with the members and the root as
colours of its graph), the collective, the sizes, the model with its profile, and the search. So two isomorphic
allocations of a cluster share an answer. The version of this package is hashed, too: another release starts anew.

    allreduce on GPUs 0 1 4 5  -> address X: planned, put
    allreduce on GPUs 2 3 6 7  -> address X: got, relabelled 0>2, 1>3, 4>6, 5>7

A store is a folder, or with the extra `store` any location that fsspec knows ("s3://bucket/plans"). Nothing in it is
trusted: `put` and `get` verify every schedule, and `get` predicts its time again on the machine of the question. A
digest of address and content, in the first line of an entry, covers the figures that are not computed again. An entry
that fails is damaged: `get` raises Invalid with the reason, and `answer` plans anew and replaces it. Writers do not
hinder each other, as each renames a complete file to the address.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from antiphon import __version__
from antiphon.core.cache import cache_folder
from antiphon.core.collective import Collective
from antiphon.core.files import read_bytes, write_bytes
from antiphon.core.plan import Plan
from antiphon.core.reshape import relabel
from antiphon.core.serialize import dumps, loads
from antiphon.core.symmetry import Labelling
from antiphon.core.topology import Topology
from antiphon.cost import Profile, model_of, predict, usual_model
from antiphon.errors import AntiphonError, Invalid, Missing, Unsupported
from antiphon.select.candidate import Range
from antiphon.select.libraries import find_nccl_model
from antiphon.select.renumber_plans import label_machine, renumber_plan
from antiphon.select.tuner import tune
from antiphon.select.tuning import Tuning

FORMAT = 4  # raised with every change of what entries hold
SUFFIX = ".plan"
MAX_BYTES = 2**28  # of an entry
# relative difference that predictions of one schedule may have, as relabelled links are summed in another order
SAME_SECONDS = 1e-9


@dataclass(frozen=True, eq=False)
class Question:
    """A request that a store can answer. Raises Unsupported for custom collectives, uneven blocks and several roots."""

    machine: Topology
    collective: Collective
    sizes: tuple[int, ...]
    model: str = ""  # "": the default model of the machine
    profile: Profile | None = None
    search: Mapping[str, Any] = field(default_factory=dict)  # options of `tune` that change its answer

    def __post_init__(self) -> None:
        weights = self.collective.weights
        if self.collective.custom is not None or len(self.collective.roots) > 1 or len(set(weights.tolist())) > 1:
            raise Unsupported("a store holds the eight collectives with equal blocks and one root; leave out the store")

    @cached_property
    def canonical(self) -> Labelling:
        """The canonical labelling of the machine, with members and root as colours, and its key."""
        return label_machine(self.machine, self.collective)

    @cached_property
    def address(self) -> str:
        """The name of the entry; isomorphic machines have the same.

        The canonical labels depend on the version of igraph, which is hashed, too.
        """
        model = self.model or usual_model(self.machine, self.profile, wanted=(self.collective,))
        text = repr(
            (
                FORMAT, __version__, _graph_library(), self.canonical.key,
                self.collective.kind, self.sizes, model, self.profile, sorted(self.search.items()),
            )
        )  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()


class SizeFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The figures of one size."""

    nbytes: int
    planner: str
    seconds: float  # predicted
    least_seconds: float | None = None  # lower bound under the same model; None: unknown
    library_seconds: float | None = None  # predicted for the library (NCCL); None: unknown

    @property
    def gap(self) -> float | None:
        return self.seconds / self.least_seconds if self.least_seconds else None


@dataclass(frozen=True, eq=False)
class Answer:
    """The plan for a question, and the figures of every size."""

    plan: Plan
    rows: tuple[SizeFigures, ...]
    model: str
    stand_ins: tuple[str, ...] = ()  # the planners that speedups are over, if the library's own choice is not known
    stored: bool = False  # it came from the store
    complete: bool = True  # False: interrupted
    stopped: int = 0  # planners that the budget stopped

    @cached_property
    def tuning(self) -> Tuning:
        """The answer as a tuning that has only the winners as candidates: from the claims of the plan, so that it is
        the same whether it is planned now or stored."""
        plan, collective = self.plan, self.plan.collective
        sizes, entries = tuple(row.nbytes for row in self.rows), self.plan.entries
        starts = [sizes[0], *(entry.start for entry in entries[1:])]  # in the plan the first entry begins at 0
        stops = [*starts[1:], sizes[-1]]  # each is exclusive, except that the last range includes its stop (`Range`)
        ranges = tuple(
            Range.from_claims(collective.kind, start, stop, entry.claims)
            for start, stop, entry in zip(starts, stops, entries, strict=True)
        )
        _, options = model_of(self.model)
        # `limits`: lower bounds. The answer has them in `rows` only, and each range its gap.
        return Tuning(
            plan.topology, self.model, (sizes[0], sizes[-1]), sizes, (collective.kind,),
            candidates=tuple(r.candidate for r in ranges), ranges=ranges, limits={},
            baselines={collective.kind: self.stand_ins}, plans={collective.kind: plan},
            profile=entries[0].claims.get("profile"),
            library=find_nccl_model(self.model, options, plan.topology, {collective.kind: collective}),
        )  # fmt: skip


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON of an entry; in its file, the line before holds the digest."""

    format: int
    machine: str  # the name of the machine that it was planned for
    model: str
    rows: list[SizeFigures]
    plan: msgspec.Raw  # in canonical numbers
    stand_ins: list[str]  # as in `Answer`


@dataclass(frozen=True)
class Stored:
    """An entry as `entries` lists it."""

    address: str
    nbytes: int  # of the entry
    seconds: float  # when it was written, since 1970
    machine: str  # its name; "" if the entry is damaged
    collective: str = ""
    sizes: tuple[int, int] = (0, 0)
    damaged: str = ""  # what is wrong with it


class FileState(NamedTuple):
    """A file of a store."""

    name: str
    nbytes: int
    seconds: float  # when it was written, since 1970


class Storage(Protocol):
    """Where a store keeps its files. `read` returns None for a missing file."""

    def prepare(self) -> None:
        """Make the place; raise Invalid if nothing can be written there."""

    def exists(self) -> bool: ...
    def read(self, name: str) -> bytes | None: ...
    def write(self, name: str, data: bytes) -> None: ...
    def delete(self, name: str) -> None: ...
    def list_files(self) -> list[FileState]:
        """Return the files of all entries, in any order."""


class Folder:
    """A folder of this computer."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.is_dir()

    def read(self, name: str) -> bytes | None:
        file = self.path / name
        return read_bytes(file, MAX_BYTES) if file.exists() else None

    def prepare(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(f"store {self.path}: is not a directory and cannot be made ({error.strerror})") from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise Invalid(f"store {self.path}: may not be written; name another place, or leave the store out")

    def write(self, name: str, data: bytes) -> None:
        self.prepare()
        file = self.path / name
        if file.is_symlink() or file.is_dir():  # damaged: no store makes these
            self.delete(name)
        write_bytes(file, data)

    def delete(self, name: str) -> None:
        file = self.path / name
        try:
            if file.is_dir() and not file.is_symlink():
                file.rmdir()
            else:
                file.unlink(missing_ok=True)
        except OSError as error:
            raise Invalid(f"store {self.path}: {name} cannot be deleted ({error.strerror})") from None

    def list_files(self) -> list[FileState]:
        files = []
        for file in self.path.glob(f"*{SUFFIX}"):
            try:
                state = file.stat()
            except FileNotFoundError:  # another process has just deleted it
                continue
            files.append(FileState(file.name, state.st_size, state.st_mtime))
        return files


class Remote:
    """A location of fsspec, such as s3://bucket/plans or memory://plans."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError:
            raise Missing(f"store {url}: needs fsspec; pip install 'antiphon[store]'") from None
        try:
            self.files, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise Invalid(f"store {url}: {error}") from None

    def exists(self) -> bool:
        return bool(self.files.exists(self.root))

    def read(self, name: str) -> bytes | None:
        try:
            data: bytes = self.files.cat_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return None
        return data

    def prepare(self) -> None:
        try:
            self.files.makedirs(self.root, exist_ok=True)
        except OSError as error:
            raise Invalid(f"store {self.root}: cannot be made ({error})") from None

    def write(self, name: str, data: bytes) -> None:
        self.prepare()
        # a complete file is renamed to the address; `list_files` skips names that begin with a dot
        temporary_path = f"{self.root}/.{name}.{os.getpid()}.{time.time_ns()}"
        self.files.pipe_file(temporary_path, data)
        self.files.mv(temporary_path, f"{self.root}/{name}")

    def delete(self, name: str) -> None:
        if self.files.exists(f"{self.root}/{name}"):
            self.files.rm_file(f"{self.root}/{name}")

    def list_files(self) -> list[FileState]:
        if not self.exists():
            return []
        files = []
        for entry in self.files.ls(self.root, detail=True):
            name = str(entry["name"]).rpartition("/")[2]
            if name.endswith(SUFFIX) and not name.startswith("."):
                files.append(FileState(name, int(entry.get("size") or 0), _timestamp(entry)))
        return files


def _timestamp(entry: Mapping[str, Any]) -> float:
    """Return when a file of fsspec was written; 0 where that is not known."""
    written = next((entry[key] for key in ("mtime", "LastModified", "last_modified", "created") if entry.get(key)), 0)
    return float(written.timestamp() if hasattr(written, "timestamp") else written)


class Store:
    """Plans by question, in a folder or at a location of fsspec.

    Parameters
    ----------
    location
        A folder, or a URL such as "s3://bucket/plans". Default: `store` in the cache folder of this user.

    Examples
    --------
    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> from antiphon.select.parse_request import machine_of
    >>> ring = machine_of("ring:ranks=4")
    >>> question = Question(ring, Collective("allgather", 4), (1000,), search={"planners": ("ring",)})
    >>> answer(question, store).stored, answer(question, store).stored
    (False, True)
    """

    def __init__(self, location: str | os.PathLike[str] | None = None) -> None:
        if location is None:
            folder = cache_folder("store")
            if folder is None:
                raise Invalid("store: ANTIPHON_CACHE is off, or there is no home; name a folder")
            location = folder
        self.location = os.fspath(location)
        self._storage: Storage = Remote(self.location) if "://" in self.location else Folder(Path(self.location))

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    def get(self, question: Question) -> Answer | None:
        """Return the answer, verified on the machine that asks; None if there is none. Invalid if it is damaged."""
        address = question.address
        data = self._storage.read(address + SUFFIX)
        if data is None:
            return None
        try:
            file = _decode(data, address)
            stored = loads(bytes(file.plan), "plan")
            if not isinstance(stored, Plan):
                raise Invalid("it holds no plan")
            plan = _answer_plan(stored, question)
            rows = tuple(file.rows)
            if tuple(row.nbytes for row in rows) != question.sizes:
                raise Invalid("its figures are for other sizes")
            _check_times(plan, rows, file.model, question.profile)
            answer = Answer(plan, rows, file.model, tuple(file.stand_ins), stored=True)
            _ = answer.tuning  # raises Invalid where claims are missing
        except (AntiphonError, RecursionError) as error:
            raise Invalid(f"store {self.location}: entry {address[:12]} is damaged: {error}") from None
        return answer

    def exists(self) -> bool:
        """Return whether the place exists."""
        return self._storage.exists()

    def prepare(self) -> None:
        """Raise Invalid if nothing can be written here: before planning, so that no plan is lost."""
        self._storage.prepare()

    def put(self, question: Question, answer: Answer) -> None:
        """Write the answer, once every schedule is verified; not if it exceeds MAX_BYTES.

        Nor if planners were interrupted or stopped: they might find better plans next time.
        """
        if answer.stopped or not answer.complete:
            return
        plan = msgspec.Raw(dumps(_canonical_plan(answer.plan, question)))
        file = _File(
            FORMAT, machine=question.machine.name, model=answer.model, rows=list(answer.rows), plan=plan,
            stand_ins=list(answer.stand_ins),
        )  # fmt: skip
        content = msgspec.json.encode(file)
        data = _digest(content, question.address) + b"\n" + content
        if len(data) <= MAX_BYTES:
            self._storage.write(question.address + SUFFIX, data)

    def entries(self) -> Iterator[Stored]:
        """Yield what the store holds, the oldest first."""
        by_age = sorted(self._storage.list_files(), key=lambda file: (file.seconds, file.name))
        for name, nbytes, seconds in by_age:
            address = name.removesuffix(SUFFIX)
            try:
                data = self._storage.read(name)
                if data is None:
                    continue
                file = _decode(data, address)
                plan = loads(bytes(file.plan), "plan")
                kind = plan.collective.kind if isinstance(plan, Plan) else ""
            except AntiphonError as error:
                yield Stored(address, nbytes, seconds, machine="", damaged=str(error))
                continue
            sizes = (file.rows[0].nbytes, file.rows[-1].nbytes) if file.rows else (0, 0)
            yield Stored(address, nbytes, seconds, file.machine, kind, sizes)

    def collect(self, max_bytes: int = 0, max_age: float | None = None) -> list[Stored]:
        """Delete damaged entries, those older than `max_age` seconds, and the oldest beyond `max_bytes` in all (0: no
        limit). Return what was deleted.
        """
        entries = list(self.entries())
        oldest = -float("inf") if max_age is None else time.time() - max_age
        deleted = [entry for entry in entries if entry.damaged or entry.seconds < oldest]
        remaining = [entry for entry in entries if entry not in deleted]
        total = sum(entry.nbytes for entry in remaining)
        while max_bytes and remaining and total > max_bytes:
            total -= remaining[0].nbytes
            deleted.append(remaining.pop(0))
        for entry in deleted:
            self._storage.delete(entry.address + SUFFIX)
        return deleted


def answer(question: Question, store: Store | None = None, **options: Any) -> Answer:
    """Return the answer of the store, or tune and put it there. `options`: those of `tune` that change no answer."""
    if store is not None:
        try:
            stored = store.get(question)
        except Invalid:  # damaged: replaced below
            stored = None
        if stored is not None:
            return stored
        store.prepare()
    tuning = tune(
        question.collective, question.machine, nbytes=list(question.sizes), model=question.model,
        profile=question.profile, **question.search, **options,
    )  # fmt: skip
    if not (tuning.complete or tuning.plans):  # Ctrl-C, which `tune` has caught
        raise KeyboardInterrupt
    planned = answer_of(tuning, question)
    if store is not None:
        store.put(question, planned)
    return planned


def answer_of(tuning: Tuning, question: Question) -> Answer:
    """Return the plan and the figures of a tuning for one collective at every size of the question."""
    plan, kind = tuning.plan, question.collective.kind
    limit = tuning.limits.get(kind)  # the lower bounds; None: unknown
    rows = tuple(
        SizeFigures(
            row["nbytes"], str(plan.at(row["nbytes"]).claims.get("planner", "")), row["seconds"],
            least_seconds=None if limit is None else limit.times.get(row["nbytes"]),
            library_seconds=None if tuning.library is None else tuning.baseline(kind, row["nbytes"]),
        )
        for row in predict(plan, list(question.sizes), model=tuning.model, profile=question.profile)
    )  # fmt: skip
    stand_ins = tuple(tuning.baselines.get(kind, ()))
    return Answer(plan, rows, tuning.model, stand_ins, complete=tuning.complete, stopped=tuning.stopped)


def _canonical_plan(plan: Plan, question: Question) -> Plan:
    """Return the plan in canonical numbers, verified.

    So a reader has to label only the machine of its question canonically, not that of the plan, too.
    """
    # `renumber_plan` takes the labelling of the plan's machine, then that of `machine`, which is canonical already
    machine = relabel(question.machine, question.canonical.new_number)
    return renumber_plan(plan, machine, question.canonical, _identity(question))


def _answer_plan(plan: Plan, question: Question) -> Plan:
    """Return a stored plan, which has canonical numbers, in the numbers of the question's machine, verified.

    The plan's own labelling is not trusted: `renumber_plan` refuses a machine that differs in any link.
    """
    renumbered = renumber_plan(plan, question.machine, _identity(question), question.canonical)
    if renumbered.collective != question.collective:
        raise Invalid("its plan is for another collective")
    return renumbered


def _identity(question: Question) -> Labelling:
    """Return the labelling of a machine that has canonical numbers already."""
    return Labelling(np.arange(question.machine.nodes, dtype=np.int32), question.canonical.key)


@cache
def _graph_library() -> str:
    """Return the version of the library that labels machines; reading it takes milliseconds."""
    return metadata.version("igraph")


def _digest(content: bytes, address: str) -> bytes:
    """Return the first line of an entry; with the address, so that an entry under another name is damaged."""
    return hashlib.sha256(address.encode() + content).hexdigest().encode()


def _decode(data: bytes, address: str) -> _File:
    """Return the content of an entry; Invalid if it was changed, belongs to another address, or cannot be read."""
    digest, _, content = data.partition(b"\n")
    if digest != _digest(content, address):
        raise Invalid("its content is not what was written there")
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(str(error)) from None
    if file.format != FORMAT:
        raise Invalid(f"format {file.format} is unknown; this release reads {FORMAT}")
    return file


def _check_times(plan: Plan, rows: tuple[SizeFigures, ...], model: str, profile: Profile | None) -> None:
    """Check that the times in an entry are those that its model predicts, and that none beats the bound beside it."""
    predictions = predict(plan, [row.nbytes for row in rows], model=model, profile=profile)
    for row, prediction in zip(rows, predictions, strict=True):
        seconds = prediction["seconds"]
        if abs(seconds - row.seconds) > SAME_SECONDS * seconds:
            raise Invalid(f"at {row.nbytes} bytes it claims {row.seconds:.3g} s, the model says {seconds:.3g}")
        if row.least_seconds is not None and row.least_seconds > row.seconds * (1 + SAME_SECONDS):
            raise Invalid(f"at {row.nbytes} bytes its time is below the bound beside it")

"""Find collectives among the events of PyTorch's profiler: their collective, bytes and process group.

An event is a JSON object of the trace. NCCL kernels and calls of our own backend carry arguments in the form of
PyTorch's record_param_comms ("Collective name", "In msg nelems", "dtype", "Process Group Name"); `call_of` reads those.
Calls of c10d (PyTorch's interface to all backends) only have the shapes of tensors, which `count_elements` and
`count_sent_received` read. Sizes are converted to those of nccl-tests: an allgather of 4 ranks that each send 10 floats
has 160 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from antiphon.core.collective import kind_named
from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import Invalid

Event = Mapping[str, Any]  # {"name": "nccl:all_reduce", "cat": "cpu_op", "ts": 12.5, "dur": 3.0, "args": {...}}, in us

_BYTES = {  # of an element, by PyTorch's name of the type in lower case
    "float": 4, "half": 2, "bfloat16": 2, "double": 8, "int": 4, "long": 8, "long int": 8, "short": 2, "short int": 2,
    "byte": 1, "char": 1, "bool": 1, "unsigned char": 1, "signed char": 1, "c10::half": 2, "c10::bfloat16": 2,
    "complexfloat": 8, "complexdouble": 16, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
# Names of events that belong to collectives begin with one of these
CALL_PREFIXES = ("c10d::", "antiphon:", "gloo:", "nccl:", "_c10d_functional::", "record_param_comms", "ucc:", "mpi:")
MAX_DEPTH = 4  # of nested lists of tensors
MAX_MEMBERS = 2**16  # ranks of a process group that are read from an event
Groups = dict[str, ProcessGroup]  # by name, with a suffix where several groups have it (`call_of`)


class CollectiveCall(NamedTuple):
    """A call of a collective, as an event describes it."""

    kind: str
    nbytes: int  # as nccl-tests counts them
    group: str  # key in `Groups`


def args_of(event: Event) -> Mapping[str, Any]:
    """Return the arguments of an event."""
    args: Mapping[str, Any] = event.get("args", {})
    return args


def kind_of(name: str) -> str | None:
    """Return the collective of a name such as "nccl:all_reduce" or "alltoallv"; None if it is none."""
    bare = name.rpartition(":")[2].lower()
    return "barrier" if bare == "barrier" else kind_named(bare) or kind_named(bare.removesuffix("v"))


def bytes_of(name: object) -> int | None:
    """Return the bytes of an element of the type of that name; None if it is unknown."""
    text = str(name).lower()
    return 1 if text.startswith(("float8", "c10::float8")) else _BYTES.get(text)


def is_call(name: str) -> bool:
    """Return whether an event of this name belongs to a collective rather than to computation."""
    return name.startswith(CALL_PREFIXES)


def count_elements(dims: object, depth: int = 0) -> int:
    """Return the elements of a tensor, or of all tensors in a list, from the event's "Input Dims": [2, 3] has 6.

    `depth`: number of lists around this one. What has no such form counts as 0.
    """
    if not isinstance(dims, list) or depth > MAX_DEPTH:
        return 0
    if any(isinstance(item, list) for item in dims):
        return sum(count_elements(item, depth + 1) for item in dims)
    count = 1
    for item in dims:
        if not isinstance(item, int) or item < 0:
            return 0
        count *= item
        if count >= 2**60:  # no real tensor; bytes must fit 64 bits
            return 0
    return count if dims else 0


def count_as_nccl_tests(kind: str, sent: int, received: int, size: int) -> int:
    """Return elements as nccl-tests counts them, from those that a rank sends and receives. `size`: group size."""
    if kind == "allgather":  # 0 elements: the event has only the other side
        return received or sent * size
    if kind == "gather":
        return sent * size
    if kind == "scatter":
        return received * size
    if kind == "reducescatter":
        return sent or received * size
    # what is left is a barrier
    return max(sent, received) if kind in ("allreduce", "alltoall", "broadcast", "reduce") else sent


def count_sent_received(kind: str, dims: Sequence[object]) -> tuple[int, int]:
    """Return the elements that a call of c10d sends and receives, from its "Input Dims": outputs come first."""
    first = count_elements(dims[0]) if dims else 0
    if kind in ("allgather", "gather", "reducescatter", "scatter", "alltoall"):  # the others work in place
        return (count_elements(dims[1]) if len(dims) > 1 else 0), first
    return first, first


def call_of(event: Event, groups: Groups, size: int | None, notes: list[str]) -> CollectiveCall | None:
    """Return the collective call of an event, or None if it names no collective.

    `groups`: the process groups of the trace, to which new ones are added. `size`: of the group, where the event states
    none. `notes`: gets a line for the user on an event that counts as computation.
    """
    args = args_of(event)
    name = args.get("Collective name")
    kind = kind_of(str(name)) if name is not None else None
    if kind is None:
        label = (
            "sends between two ranks" if name in ("send", "recv") else "kernels without the name of their collective"
        )
        notes.append(f"{label} count as computation")
        return None
    input_elements, output_elements = (args.get(key, 0) for key in ("In msg nelems", "Out msg nelems"))
    group_size = args.get("Group size", size)
    counts = (input_elements, output_elements, group_size)
    if not all(isinstance(value, int) and 0 <= value < 2**50 for value in counts) or not group_size:
        raise Invalid(f"{kind} at {event['ts']} us: In msg nelems, Out msg nelems or Group size is not there")
    item_bytes = bytes_of(args.get("dtype", ""))
    if item_bytes is None:
        raise Invalid(f"{kind} at {event['ts']} us: its dtype is not known")
    key = str(args.get("Process Group Name", ""))
    group = groups.get(key)
    # Names are reused: a group of another size than the first of its name gets a key of its own, and so does a group
    # without a name.
    if group is None or group.size != group_size:
        key = f"{key or 'group'} of {group_size}" if group is not None or not key else key
        groups.setdefault(
            key, ProcessGroup(key, group_size, _parse_members(args.get("Process Group Ranks"), group_size))
        )
    elements = count_as_nccl_tests(kind, input_elements, output_elements, group_size)
    return CollectiveCall(kind, elements * item_bytes, key)


def _parse_members(text: object, count: int) -> tuple[int, ...]:
    """Parse "[0, 1, 2, 3]"; PyTorch abbreviates long lists, which give ()."""
    words = str(text).strip("[]").split(",", MAX_MEMBERS) if text else []
    ranks = tuple(int(word) for word in words if word.strip().isdigit() and len(word) < 9)  # longer: no rank
    return ranks if len(ranks) == len(words) == count else ()

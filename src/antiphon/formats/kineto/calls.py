"""What an event tells of a collective in record_param_comms' words: kernels of NCCL have them, and calls of ours."""

from __future__ import annotations

from antiphon.cost.replay.job import ProcessGroup
from antiphon.errors import Invalid
from antiphon.formats.kineto.words import Event, args_of, bytes_of, counted, kind_of

Told = tuple[str, int, str]  # kind, nbytes, group
Groups = dict[str, ProcessGroup]
MAX_MEMBERS = 2**16


def call_of(event: Event, groups: Groups, size: int | None, notes: list[str]) -> Told | None:
    """None where it is no collective, or does not say which. A group that is new goes into `groups`."""
    args = args_of(event)
    name = args.get("Collective name")
    kind = kind_of(str(name)) if name is not None else None
    if kind is None:
        label = "sends from one to another" if name in ("send", "recv") else "kernels that do not tell their collective"
        notes.append(f"{label} count as computation")
        return None
    input_elements, output_elements = (args.get(key, 0) for key in ("In msg nelems", "Out msg nelems"))
    members = args.get("Group size", size)
    if (
        not all(isinstance(value, int) and 0 <= value < 2**50 for value in (input_elements, output_elements, members))
        or not members
    ):
        raise Invalid(f"{kind} at {event['ts']} us: In msg nelems, Out msg nelems or Group size is not there")
    item = bytes_of(args.get("dtype", ""))
    if item is None:
        raise Invalid(f"{kind} at {event['ts']} us: its dtype is not known")
    key = str(args.get("Process Group Name", ""))
    group = groups.get(key)
    if group is None or group.size != members:
        key = f"{key or 'group'} of {members}" if group is not None or not key else key
        groups.setdefault(key, ProcessGroup(key, members, _members(args.get("Process Group Ranks"), members)))
    return kind, counted(kind, input_elements, output_elements, members) * item, key


def _members(listed: object, count: int) -> tuple[int, ...]:
    """Of "[0, 1, 2, 3]"; long lists are told in part only, and then none are known."""
    words = str(listed).strip("[]").split(",", MAX_MEMBERS) if listed else []
    ranks = tuple(int(word) for word in words if word.strip().isdigit() and len(word) < 9)
    return ranks if len(ranks) == len(words) == count else ()

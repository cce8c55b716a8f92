"""The schemas of all files, as typed structs: fields, types and defaults as documented in docs/formats.md."""

from __future__ import annotations

from typing import Any

import msgspec

VERSION = 1
TOPOLOGY, COLLECTIVE, PLAN = "antiphon-topology", "antiphon-collective", "antiphon-plan"
# Limits of counts in a file, so that a few bytes of text cannot claim gigabytes of memory. convert.py checks them.
MAX_FILE_NODES = 2**20
MAX_FILE_BLOCKS = 2**25  # `MAX_BLOCKS` of core/collective.py
MAX_FILE_TYPES = 2**18  # link types; each takes about 25 times the memory of its text
MAX_FILE_ENTRIES = 2**11  # entries of a plan, one per range of sizes

Exact = int | str  # an exact number: an integer, or a text such as "7/6" or, for bandwidths, "25GB/s"


class FileHead(msgspec.Struct):
    """The keys that every file has; the rest is skipped."""

    format: Any = None
    version: Any = None


class FileObject(msgspec.Struct, forbid_unknown_fields=True):
    """The common base of all JSON objects in a file. docs/formats.md explains their keys."""


class TypeRow(FileObject):
    kind: str
    bandwidth: Exact  # a number is in bytes per second
    latency: int | float | str = 0  # seconds, or a text such as "1.5us"


class LimitRow(FileObject):
    name: str
    links: list[int]  # positions in `links` of the topology
    bandwidth: Exact


class AbilityRow(FileObject):
    switches: list[int]  # the nodes with this ability
    multicast: bool = False
    reduce: bool = False
    through: bool = False  # a combined value may leave by several links without reaching a rank in between
    own: bool = False  # the data of the rank that starts or ends a joint cross its link, too
    at_once: int = 0  # joints per step; 0: no limit
    operators: list[str] = []  # that it can apply; []: all
    types: list[str] = []  # data types that it can combine; []: all


class CardRow(FileObject):
    name: str
    serves: list[int]  # nodes
    bandwidth: Exact | None = None  # None: unknown


class TopologyRow(FileObject, kw_only=True):
    format: str = TOPOLOGY
    version: int = VERSION
    name: str
    ranks: int
    switches: int = 0
    unit: Exact | None = None  # bandwidth of a unit link, in bytes/s; None: that of the slowest link
    types: list[TypeRow]
    links: list[tuple[int, int, int]]  # (source, destination, index into `types`)
    limits: list[LimitRow] = []
    places: list[str] | None = None  # per node, such as "host0/gpu3"; None: "rank0", ..., "switch0", ...
    abilities: list[AbilityRow] = []
    cards: list[CardRow] = []


class WantedRow(FileObject):
    rank: int
    ids: list[int]  # of the contributions that the rank wants


class BlockRow(FileObject, kw_only=True):
    """A block of a custom collective: the ranks that begin with it (`pre`) and that must end with it (`post`)."""

    weight: int = 1
    pre: list[int | tuple[int, int]]  # ranks, or (rank, id of its contribution)
    post: list[int | WantedRow]  # ranks that want all contributions, or those listed


class GroupRow(FileObject, kw_only=True):
    kind: str
    members: list[int]
    roots: list[int] | None = None
    weights: list[int] | None = None
    size: int = 1  # of its buffer, relative to those of the other groups


class CollectiveRow(FileObject, kw_only=True):
    format: str = COLLECTIVE
    version: int = VERSION
    kind: str = "custom"
    ranks: int
    members: list[int] | None = None  # None: all ranks
    roots: list[int] | None = None  # None: the first member, if the kind has a root
    weights: list[int] | None = None  # per block; None: all equal
    combining: bool = False  # of `blocks`: whether the id that `pre` leaves out is the rank; else it is 0
    ordered: bool = False  # contributions are combined in the order of ranks
    blocks: list[msgspec.Raw] | None = None  # each a BlockRow, read one after another
    groups: list[GroupRow] | None = None  # of a joint collective, instead of blocks


class ChunksRow(FileObject):
    block: list[int]
    offset: list[int]
    share: list[int]
    denominator: int


class LocalRow(FileObject):
    """Work within every rank, such as copying `share` of its buffer."""

    kind: str
    share: Exact


class ScheduleRow(FileObject):
    chunks: ChunksRow
    step: msgspec.Raw  # each column a list of whole numbers, read one after another; those with a default may be null
    chunk: msgspec.Raw
    src: msgspec.Raw
    dst: msgspec.Raw
    op: msgspec.Raw  # 0: copy, 1: reduce
    route: msgspec.Raw = msgspec.Raw(b"null")
    src_slot: msgspec.Raw = msgspec.Raw(b"null")
    dst_slot: msgspec.Raw = msgspec.Raw(b"null")
    joint: msgspec.Raw = msgspec.Raw(b"null")
    routes: list[list[int]] = []
    pieces: int | list[int] = 1
    local: list[LocalRow] = []
    provenance: dict[str, Any] = {}


class EntryRow(FileObject, kw_only=True):
    """The schedule for sizes from `start` to below `stop`, in bytes; None: no upper end."""

    start: int = msgspec.field(default=0, name="from")
    stop: int | None = msgspec.field(default=None, name="to")
    schedule: ScheduleRow
    claims: dict[str, Any] = {}


class PlanRow(FileObject, kw_only=True):
    format: str = PLAN
    version: int = VERSION
    topology: TopologyRow
    collective: CollectiveRow
    entries: list[EntryRow]

"""Encode and decode the nodes of a Chakra execution trace (et_def.proto of github.com/mlcommons/chakra).

A trace is a file of Protocol Buffers messages, each with its length before it: first the head, which has attributes,
then a node per operation of the rank. A node has a number, a name, a type (compute, send, receive, collective,
metadata), the numbers of the nodes that it waits for, a duration, and attributes such as comm_size. `head` and `node`
encode them, `read_nodes` decodes a file with limits on its memory, and `topological_order` sorts nodes so that each
follows those that it waits for. The encoding of numbers and fields is in `wire`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.errors import Invalid, Unsupported
from antiphon.formats.chakra.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    delimited,
    fields,
    messages,
    number,
    numbers,
    octets,
    packed,
    signed,
    text,
    unpack,
    unzigzag,
    varint,
)

METADATA, COMPUTE, SEND, RECEIVE, COLLECTIVE = 1, 4, 5, 6, 7  # NodeType of et_def.proto
# by the trace's comm_type; the second "reducescatter" is its REDUCE_SCATTER_BLOCK
COLLECTIVES = (
    "allreduce", "reduce", "allgather", "gather", "scatter", "broadcast", "alltoall", "reducescatter", "reducescatter",
    "barrier",
)  # fmt: skip
VERSION = "0.0.4"  # of the format; the head states it
MAX_NODES, MAX_DEPENDENCIES = 2**22, 2**25  # of a file
# Limits on the memory that a hostile file can occupy: objects (a node counts as two, an attribute as one) that any file
# may have, and bytes that it must have for each further object
MIN_ALLOWED_OBJECTS, BYTES_PER_OBJECT = 2**14, 12
Value = int | float | str | bytes | bool | list[int] | list[float] | list[str] | list[bytes] | list[bool]

# The types of fields 3 to 32 of an attribute: fields 3 (one value) and 4 (a list) are of the first type, and so on.
_TYPE_NAMES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
_NO_ATTRIBUTES: Mapping[str, Value] = {}
# types of fixed length -> their format in `struct`
_FIXED = {"double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q"}
_INT32, _INT64, _INT64S, _BOOL, _STRING = 7, 9, 10, 27, 29  # numbers of these fields of an attribute; _INT64S: a list


@dataclass(frozen=True, slots=True)
class Node:
    """An operation of a rank."""

    id: int
    name: str
    type: int  # METADATA, COMPUTE, SEND, RECEIVE or COLLECTIVE
    dependencies: Sequence[int] = ()  # ids of the nodes that must be done before
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)
    inputs: str = ""  # values that PyTorch recorded, as text

    def integer(self, name: str) -> int | None:
        """Return an attribute if it is a whole number, else None."""
        value = self.attributes.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


# ---- to bytes ----


def attribute(name: str, value: int | bool | str | Sequence[int], short: bool = False) -> bytes:
    """Encode an attribute, without the tag of the field that holds it: 10 of a node, 2 of the head (`octets` adds it).

    `short`: a number has 32 bits. The types are those that older readers of ASTRA-sim insist on; newer ones take any.
    """
    name_field = octets(1, name.encode())
    if isinstance(value, bool):
        return name_field + varint(_BOOL << 3) + varint(value)
    if isinstance(value, str):
        return name_field + octets(_STRING, value.encode())
    if isinstance(value, int):  # 0 is written, too: the presence of a field says that the attribute is a number
        return name_field + varint((_INT32 if short else _INT64) << 3) + varint(value)
    return name_field + octets(_INT64S, packed(1, value))  # a list is a message whose field 1 has the values


def head(attributes: Mapping[str, str]) -> bytes:
    """Encode the first message of a file."""
    attribute_fields = b"".join(octets(2, attribute(name, value)) for name, value in attributes.items())
    return delimited(octets(1, VERSION.encode()) + attribute_fields)


def node(
    number_: int, name: str, node_type: int, dependencies: Sequence[int] = (), duration_us: int = 0,
    attributes: bytes = b"",
) -> bytes:  # fmt: skip
    """Encode a node. `node_type`: as `Node.type`.

    `attributes`: each as octets(10, attribute(...)), one after another.
    """
    return delimited(
        number(1, number_) + octets(2, name.encode()) + number(3, node_type) + packed(5, dependencies)
        + number(7, duration_us) + attributes
    )  # fmt: skip


# ---- from bytes ----


def read_nodes(data: bytes) -> tuple[dict[str, Value], list[Node]]:
    """Return the attributes of a file's head, and its nodes in their order. Invalid names the byte of a fault."""
    spans = messages(data)
    first = next(spans, None)
    if first is None:
        raise Invalid("is empty; an execution trace begins with its head")
    head_attributes: dict[str, Value] = {}
    # of a field with bytes, `value` is the offset where they begin; only of wire type VARINT it is a number
    for number_, wire_type, value, end in fields(data, *first):
        if number_ == 2 and wire_type == BYTES:  # 1 is the version, 2 an attribute
            name, attribute_value = _read_attribute(data, value, end)
            head_attributes.setdefault(name, attribute_value)
    nodes: list[Node] = []
    dependency_count, objects = 0, len(head_attributes)
    max_objects = MIN_ALLOWED_OBJECTS + len(data) // BYTES_PER_OBJECT
    for begin, end in spans:
        if len(nodes) == MAX_NODES:
            raise Unsupported(f"has more than {MAX_NODES} nodes")
        entry = _read_node(data, begin, end)
        dependency_count += len(entry.dependencies)
        objects += 2 + len(entry.attributes)  # the node and its name
        if dependency_count > MAX_DEPENDENCIES:
            raise Unsupported(f"its nodes have more than {MAX_DEPENDENCIES} dependencies")
        if objects > max_objects:
            raise Invalid(f"byte {begin}: too many short nodes and attributes: {BYTES_PER_OBJECT} bytes are usual")
        nodes.append(entry)
    _check_dependencies(nodes)
    return head_attributes, nodes


def _read_node(data: bytes, begin: int, end: int) -> Node:
    """Decode a node.

    Fields: 1 id, 2 name, 3 type, 4 and 5 dependencies (control and data), 6 start, 7 duration, 8 inputs (a message
    whose field 1 is their text), 10 attribute.
    """
    values: dict[int, int] = {}
    name = inputs = ""
    dependencies = array("Q")
    attributes: dict[str, Value] | None = None
    for number_, wire_type, value, stop in fields(data, begin, end):
        expected = {2: BYTES, 8: BYTES, 10: BYTES, 1: VARINT, 3: VARINT, 6: VARINT, 7: VARINT}.get(number_)
        if expected is not None and wire_type != expected:
            raise Invalid(f"byte {begin}: field {number_} of this node is of another type than in a trace")
        if number_ in (1, 3, 6, 7):
            values[number_] = value
        elif number_ == 2:
            name = text(data, value, stop)
        elif number_ in (4, 5):
            dependencies.extend(numbers(data, wire_type, value, stop))
        elif number_ == 8:
            inputs = next(
                (
                    text(data, text_begin, text_end)
                    for inner_number, inner_type, text_begin, text_end in fields(data, value, stop)
                    if (inner_number, inner_type) == (1, BYTES)
                ),
                "",
            )
        elif number_ == 10:
            attributes = {} if attributes is None else attributes
            key, item = _read_attribute(data, value, stop)
            attributes.setdefault(key, item)
    return Node(
        values.get(1, 0), name, values.get(3, 0), dependencies or (), values.get(6, 0), values.get(7, 0),
        attributes or _NO_ATTRIBUTES, inputs,
    )  # fmt: skip


def _read_attribute(data: bytes, begin: int, end: int) -> tuple[str, Value]:
    """Decode an attribute: its name and its value."""
    name, result = "", None
    for number_, wire_type, value, stop in fields(data, begin, end):
        if number_ == 1 and wire_type == BYTES:
            name = sys.intern(text(data, value, stop))
        elif 3 <= number_ <= 32:  # per type a field with one value (odd) and one with several
            type_name = _TYPE_NAMES[(number_ - 3) // 2]
            if number_ % 2:
                result = _read_value(type_name, data, wire_type, value, stop)
            elif wire_type == BYTES:
                result = _read_values(type_name, data, value, stop)
    return name, 0 if result is None else result  # writers may omit a value of 0


def _read_value(type_name: str, data: bytes, wire_type: int, value: int, end: int) -> Value:
    """Decode one value. `value`, `end`: as `fields` yields them: a number, or where the bytes begin and end."""
    expected = BYTES if type_name in ("string", "bytes") else VARINT
    if type_name in _FIXED:
        expected = FIXED64 if struct.calcsize(_FIXED[type_name]) == 8 else FIXED32
    if wire_type != expected:
        raise Invalid(
            f"byte {value if wire_type != VARINT else end}: an attribute of type {type_name} that is written as another"
        )
    if type_name in _FIXED:
        return unpack(_FIXED[type_name], data, value, end)
    if wire_type == BYTES:
        return text(data, value, end) if type_name == "string" else data[value:end]
    return _decode_varint(type_name, value)


def _decode_varint(type_name: str, value: int) -> Value:
    if type_name == "bool":
        return bool(value)
    if type_name in ("sint32", "sint64"):
        return unzigzag(value)
    return signed(value) if type_name in ("int32", "int64") else value


def _read_values(type_name: str, data: bytes, begin: int, end: int) -> Value:
    """Decode a list: a message whose field 1 has the values, each in a field of its own, or many numbers packed."""
    values: list[Value] = []
    for number_, wire_type, value, stop in fields(data, begin, end):
        if number_ != 1:
            continue
        if len(values) > MIN_ALLOWED_OBJECTS + (end - begin) // BYTES_PER_OBJECT and type_name in ("string", "bytes"):
            raise Invalid(f"byte {begin}: too many short texts: {BYTES_PER_OBJECT} bytes are usual")
        if wire_type != BYTES or type_name in ("string", "bytes"):
            values.append(_read_value(type_name, data, wire_type, value, stop))
        elif type_name in _FIXED:
            size = struct.calcsize(_FIXED[type_name])
            values += [unpack(_FIXED[type_name], data, at, min(at + size, stop)) for at in range(value, stop, size)]
        else:
            values += [_decode_varint(type_name, number_read) for number_read in numbers(data, wire_type, value, stop)]
    return values  # type: ignore[return-value]  # all of one kind


def _check_dependencies(nodes: Sequence[Node]) -> None:
    """Check that node numbers are unique and that every dependency is an existing node."""
    ids: set[int] = set()
    for entry in nodes:
        if entry.id in ids:
            raise Invalid(f"node {entry.id}: its number is given twice")
        ids.add(entry.id)
    for entry in nodes:
        missing = next((dependency for dependency in entry.dependencies if dependency not in ids), None)
        if missing is not None:
            raise Invalid(f"node {entry.id}: waits for node {missing}, which is not there")


def topological_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """Return the nodes in topological order (Kahn). Invalid if there is a cycle. O(nodes + dependencies)."""
    index_of = {entry.id: index for index, entry in enumerate(nodes)}
    unmet, last = array("q", (len(entry.dependencies) for entry in nodes)), array("q", [-1]) * len(nodes)
    # `unmet`: per node the number of dependencies that are not done. All waits for one node form a linked list:
    # `waiting_node` has the node that waits, `previous_wait` the next entry (-1: the end), `last`, by node, the head.
    waiting_node, previous_wait = array("q"), array("q")
    for index, entry in enumerate(nodes):
        for dependency in entry.dependencies:
            waiting_node.append(index)
            previous_wait.append(last[index_of[dependency]])
            last[index_of[dependency]] = len(waiting_node) - 1
    del index_of
    ready_nodes = array("q", (index for index, count in enumerate(unmet) if not count))
    for finished in ready_nodes:  # grows during the loop
        yield nodes[finished]
        wait = last[finished]
        while wait >= 0:
            unmet[waiting_node[wait]] -= 1
            if not unmet[waiting_node[wait]]:
                ready_nodes.append(waiting_node[wait])
            wait = previous_wait[wait]
    if len(ready_nodes) < len(nodes):
        stuck = next(nodes[index].id for index, count in enumerate(unmet) if count)
        raise Invalid(f"node {stuck}: waits for itself, by way of others")

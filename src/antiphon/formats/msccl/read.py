"""Read MSCCL XML files of any origin; the terms of the format and the limits of its executor.

A file is an algorithm (<algo>) with a <gpu> per rank, its thread blocks (<tb>) and their steps:

    <algo name="ring" coll="allreduce" proto="Simple" ngpus="2" nchannels="1" nchunksperloop="2" inplace="1">
      <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
        <tb id="0" send="1" recv="1" chan="0">
          <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>

A thread block sends to one rank and receives from one. Its step sends (s), receives (r, with a copy rcs, with a
reduction rrs, rrc, rrcs), copies (cpy), reduces locally (re) or only waits (nop): `cnt` chunks from `srcoff` of the
input, output or scratch (i, o, s) to `dstoff`. It waits for step `deps` of thread block `depid`; hasdep=1: others wait
for it. nchunksperloop is the number of chunks of the call's buffer. `read_msccl` returns all this as an
`AlgorithmFile`, which code.py turns into a schedule.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon.core.files import name_of, read_bytes
from antiphon.errors import Invalid, quote
from antiphon.formats.xml import MAX_DIGITS, Attributes, encoding, opening, read_xml
from antiphon.lower.without_gc import without_gc

KINDS = ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter")
LETTERS = "ios"  # of input, output and scratch
# messages in flight from one thread block to another: NCCL's buffer has 8 steps, of which a Simple message takes 4
SLOTS_OF_PROTOCOL = {"Simple": 2, "LL": 8, "LL128": 8}
# by protocol, the largest message: the smallest default of any executor
MOST_MESSAGE_BYTES = {"Simple": 2**21, "LL": 2**14, "LL128": 50176}
NODES = 4095  # XML elements of a file that the runtime keeps per rank (checked in write.py)
# by the text in the file, so that all steps share one string per verb
VERBS = {verb: verb for verb in ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")}
SENDS = ("s", "rcs", "rrs", "rrcs")
RECEIVES = ("r", "rcs", "rrs", "rrc", "rrcs")
READS = ("s", "rrs", "rrc", "rrcs", "cpy", "re")  # verbs that read at srcbuf
WRITES = ("r", "rcs", "rrc", "rrcs", "cpy", "re")  # verbs that write at dstbuf
MOST_BYTES = 2**30  # of a file
MOST_RANKS = 1024
MOST_BLOCKS = 1024  # thread blocks of a rank in the executor
MOST_CHANNELS = 128  # of RCCL
MOST_STEPS = 64  # of a thread block in the executor
MOST_COUNT = 71  # chunks of one step in the executor
CACHED_DIGITS = 5  # numbers with up to this many digits are cached by their text
_TAG = re.compile(rb"<[^<>]*>?")
_SUSPECT = re.compile(rb"<[^<>'\n\r]*+['\n\r]")  # without such text no tag of the file needs a look


@dataclass(slots=True)
class FileStep:
    """A step as in the file. `src`, `dst`: buffers, by their LETTERS; `src_at`, `dst_at`: offsets, often -1 where the
    verb uses none. `after`, `after_step`: depid and deps, the thread block and its step that this step waits for; -1:
    none. `flag`: hasdep, whether others wait for it."""

    number: int
    verb: str
    src: str
    src_at: int
    dst: str
    dst_at: int
    count: int
    after: int
    after_step: int
    flag: bool


@dataclass(slots=True)
class FileBlock:
    """A thread block. `send`, `recv`: the ranks that it sends to and receives from, -1 for none."""

    number: int
    send: int
    recv: int
    channel: int
    steps: list[FileStep] = field(default_factory=list)


@dataclass(slots=True)
class FileRank:
    """A rank. `sizes`: declared chunks of input, output and scratch. `blocks`: in the order of their numbers."""

    rank: int
    sizes: tuple[int, int, int]
    blocks: list[FileBlock] = field(default_factory=list)


@dataclass(slots=True)
class AlgorithmFile:
    """A file. `chunks`: nchunksperloop. `sizes`: least and most bytes, 0 for no end. `root`: -1 if the file names none.
    `notes`: what a runtime refuses or does silently, though nothing is wrong with the algorithm."""

    name: str
    protocol: str
    collective: str
    ranks: int
    channels: int
    chunks: int
    root: int
    in_place: bool
    out_of_place: bool
    sizes: tuple[int, int]
    gpus: list[FileRank] = field(default_factory=list)
    notes: tuple[str, ...] = ()


@without_gc()
def read_msccl(source: str | os.PathLike[str] | bytes) -> AlgorithmFile:
    """Return the algorithm of a file, or of its contents; Invalid, with line and element, if it is none.

    Only its form is checked here; `code.code_of` derives what it does. Commonly omitted attributes, and anything that
    only the executor's own parser refuses, become notes. Linear; memory is a few times the file.
    """
    data = source if isinstance(source, bytes) else read_bytes(source)
    if len(data) > MOST_BYTES:
        raise Invalid(f"XML: has {len(data)} bytes; MSCCL XML of more than {MOST_BYTES} is not read")
    reader = _Reader()
    try:
        read_xml(data, reader)
        algorithm = reader.finish()
    except Invalid as error:
        if isinstance(source, bytes):
            raise
        raise Invalid(f"{name_of(source)}: {str(error).removeprefix('XML: ')}") from None
    algorithm.notes = (*reader.notes, *_parser_notes(data))
    return algorithm


class _Reader:
    """Builds the algorithm from elements in the order of the file (the interface of `xml.Reader`)."""

    def __init__(self) -> None:
        self.algorithm: AlgorithmFile | None = None
        self.notes: list[str] = []
        self.gpu: FileRank | None = None
        self.block: FileBlock | None = None
        self.open: list[str] = []  # names of the open elements, the innermost last
        self.words: dict[str, str] = {}  # buffer letters read before
        self.numbers: dict[str, int] = {}  # numbers read before, by their texts

    def begin(self, name: str, attributes: Attributes, line: int) -> None:
        """Take an element. Invalid if it stands in a wrong one, so methods for inner elements find the outer ones."""
        parent = self.open[-1] if self.open else ""
        if _PARENTS.get(name, "?") != parent:
            expected = "" if name in _PARENTS else "; expected algo, gpu, tb and step"
            raise Invalid(f"line {line}: <{quote(name)[1:-1]}> stands in <{parent or 'nothing'}>{expected}")
        self.open.append(name)
        element = _Element(line, name, attributes, self.numbers)
        if name == "algo":
            self._begin_algorithm(element)
        elif name == "gpu":
            self._begin_gpu(element)
        elif name == "tb":
            self._begin_block(element)
        else:
            self._begin_step(element)

    def end(self, name: str) -> None:
        self.open.pop()

    def finish(self) -> AlgorithmFile:
        """Return the complete algorithm with blocks and ranks in order."""
        algorithm = self.algorithm
        if algorithm is None:
            raise Invalid("XML: has no <algo>; expected MSCCL XML")
        algorithm.gpus.sort(key=lambda gpu: gpu.rank)
        if [gpu.rank for gpu in algorithm.gpus] != list(range(algorithm.ranks)):
            raise Invalid(f"XML: expected a gpu of each id from 0 to {algorithm.ranks - 1}, once")
        for gpu in algorithm.gpus:
            gpu.blocks.sort(key=lambda block: block.number)
            if not gpu.blocks or [block.number for block in gpu.blocks] != list(range(len(gpu.blocks))):
                raise Invalid(
                    f"XML: rank {gpu.rank}: expected thread blocks (tb) with ids 0, 1, 2 and so on, once each"
                )
        return algorithm

    def _begin_algorithm(self, element: _Element) -> None:
        if self.algorithm is not None:
            raise Invalid(f"line {element.line}: a second <algo>")
        kind, protocol = element.text("coll"), element.text("proto")
        if kind not in KINDS:
            raise Invalid(f"line {element.line}: coll is {quote(kind)}; expected {', '.join(KINDS)}")
        if protocol not in SLOTS_OF_PROTOCOL:
            raise Invalid(f"line {element.line}: proto is {quote(protocol)}; expected {', '.join(SLOTS_OF_PROTOCOL)}")
        ranks = element.whole("ngpus", 1, MOST_RANKS)
        in_place = bool(element.whole("inplace", 0, 1))
        missing = [key for key in ("outofplace", "minBytes", "maxBytes") if key not in element.attributes]
        if missing:
            self.notes.append(f"the executor's parser refuses this file: it has no {', '.join(missing)}")
        out_of_place = bool(element.whole("outofplace", 0, 1, missing=int(not in_place)))
        min_bytes, max_bytes = (element.whole(key, 0, 2**62, missing=0) for key in ("minBytes", "maxBytes"))
        if max_bytes and max_bytes < min_bytes:
            self.notes.append(f"it is never used: no size is from {min_bytes} to {max_bytes} bytes")
        if not in_place and not out_of_place:
            self.notes.append("it is never used: it is neither for calls in place nor out of place")
        channels = element.whole("nchannels", 1, MOST_CHANNELS)
        if channels > 32:
            self.notes.append(f"it needs {channels} channels; MSCCL's executor has 32, RCCL {MOST_CHANNELS}")
        self.algorithm = AlgorithmFile(
            element.text("name"), protocol, kind, ranks, channels, chunks=element.whole("nchunksperloop", 1, 2**31 - 1),
            root=element.whole("root", 0, ranks - 1, missing=-1), in_place=in_place, out_of_place=out_of_place,
            sizes=(min_bytes, max_bytes),
        )  # fmt: skip

    def _begin_gpu(self, element: _Element) -> None:
        assert self.algorithm is not None
        rank = element.whole("id", 0, self.algorithm.ranks - 1)
        sizes = element.whole("i_chunks", 0), element.whole("o_chunks", 0), element.whole("s_chunks", 0)
        self.gpu = FileRank(rank, sizes)
        self.algorithm.gpus.append(self.gpu)
        if len(self.algorithm.gpus) > self.algorithm.ranks:
            raise Invalid(f"line {element.line}: more than ngpus={self.algorithm.ranks} gpus")

    def _begin_block(self, element: _Element) -> None:
        assert self.algorithm is not None
        assert self.gpu is not None
        last = self.algorithm.ranks - 1
        channel = element.whole("chan", 0, MOST_CHANNELS)
        send, recv = element.whole("send", -1, last), element.whole("recv", -1, last)
        self.block = FileBlock(element.whole("id", 0, MOST_BLOCKS - 1), send, recv, channel)
        self.gpu.blocks.append(self.block)
        element.name = f"rank {self.gpu.rank}, tb {self.block.number}"
        if self.gpu.rank in (send, recv):
            raise Invalid(f"line {element.line}: {element.name}: it sends to its own rank, or receives from it")
        if channel >= self.algorithm.channels and (send >= 0 or recv >= 0):
            raise Invalid(
                f"line {element.line}: {element.name}: chan is {channel}, of nchannels={self.algorithm.channels}"
            )

    def _begin_step(self, element: _Element) -> None:
        assert self.gpu is not None
        assert self.block is not None
        number = len(self.block.steps)
        # The fast path serves nearly all steps; errors are found on the slow path.
        step = self._common_step(element.attributes, number)
        if step is not None:
            self.block.steps.append(step)
            return
        element.name = f"rank {self.gpu.rank}, tb {self.block.number}, step {number}"
        if number >= MOST_STEPS:
            raise Invalid(f"line {element.line}: {element.name}: a thread block has at most {MOST_STEPS} steps")
        if element.whole("s", 0) != number:
            raise Invalid(
                f"line {element.line}: {element.name}: s is {element.whole('s', 0)}; expected {number}, as steps follow"
            )
        verb = element.text("type")
        if verb not in VERBS:
            raise Invalid(f"line {element.line}: {element.name}: type is {quote(verb)}; expected {', '.join(VERBS)}")
        # the executor does not look at the count of a nop
        count = element.whole("cnt", 0 if verb != "nop" else -(2**31), MOST_COUNT if verb != "nop" else 2**31 - 1)
        src, dst = (self._buffer_letter(element, key) for key in ("srcbuf", "dstbuf"))
        self.block.steps.append(
            FileStep(
                number, VERBS[verb], src=src, src_at=element.whole("srcoff", -(2**31)), dst=dst,
                dst_at=element.whole("dstoff", -(2**31)), count=count, after=element.whole("depid", -(2**31)),
                after_step=element.whole("deps", -(2**31)), flag=bool(element.whole("hasdep", 0, 1)),
            )
        )  # fmt: skip

    def _common_step(self, attributes: Attributes, number: int) -> FileStep | None:
        """Return a common step whose numbers were all read before, fast; None for the caller to check any other.

        Such numbers have few digits (CACHED_DIGITS), so they are within the limits of 32 bits.
        """
        numbers, words = self.numbers, self.words
        try:
            verb, src, dst = VERBS[attributes["type"]], words[attributes["srcbuf"]], words[attributes["dstbuf"]]
            source, target = numbers[attributes["srcoff"]], numbers[attributes["dstoff"]]
            block, step = numbers[attributes["depid"]], numbers[attributes["deps"]]
            s, count, flag = numbers[attributes["s"]], numbers[attributes["cnt"]], numbers[attributes["hasdep"]]
        except KeyError:
            return None
        if verb == "nop" or s != number or number >= MOST_STEPS or not 0 <= count <= MOST_COUNT or flag not in (0, 1):
            return None
        return FileStep(number, verb, src, source, dst, target, count, block, step, flag == 1)

    def _buffer_letter(self, element: _Element, key: str) -> str:
        text = element.text(key)
        if text not in tuple(LETTERS):
            raise Invalid(f"line {element.line}: {element.name}: {key} is {quote(text)}; expected i, o or s")
        return self.words.setdefault(text, text)


# by element, the one that it stands in; "": none
_PARENTS = {"algo": "", "gpu": "algo", "tb": "gpu", "step": "tb"}


@dataclass(slots=True)
class _Element:
    """An element's attributes, read with checks. `line`: of the file. `name`: the element or step, for messages."""

    line: int
    name: str
    attributes: Attributes
    numbers: dict[str, int]  # those read before, by their texts

    def text(self, key: str) -> str:
        value = self.attributes.get(key)
        if value is None:
            raise Invalid(f'line {self.line}: {self.name} has no {key}="..."')
        return value

    def whole(self, key: str, low: int, high: int = 2**31 - 1, missing: int | None = None) -> int:
        """Return a whole number from `low` to `high`, or `missing` if there is no such attribute (None: Invalid).

        No leading zeros: the executor would read 010 as octal, 8.
        """
        text = self.attributes.get(key)
        cached = self.numbers.get(text or "")
        if cached is not None and low <= cached <= high:
            return cached
        if text is None and missing is not None:
            return missing
        text = self.text(key)
        digits = text.removeprefix("-")
        is_plain = (
            digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS and (digits[0] != "0" or digits == "0")
        )
        if not is_plain or not low <= int(text) <= high:
            raise Invalid(
                f"line {self.line}: {self.name}: {key} is {quote(text)}; expected a whole number from {low} to {high}"
            )
        # Cache short numbers by their text; long ones are rare and would fill the cache.
        if len(text) <= CACHED_DIGITS:
            self.numbers[text] = int(text)
        return int(text)


def _parser_notes(data: bytes) -> Iterator[str]:
    """Yield notes on valid XML that the executor's own parser refuses."""
    refused = "the executor's parser refuses this file"
    if encoding(data) != "UTF-8":
        yield f"{refused}: it is in {encoding(data)}; write it as UTF-8"
        return
    if not data.lstrip().startswith(b"<"):
        yield f"{refused}: it begins with a mark of its encoding; write it as UTF-8 without one"
    if opening(data).startswith("<?xml"):
        yield f"{refused}: it begins with <?xml ...?>; remove the line"
    if b"\t" in data:
        yield f"{refused}: it has tabs; write blanks"
    # Search tag by tag only if the file has a suspicious byte at all.
    for tag in _TAG.finditer(data) if _SUSPECT.search(data) else ():
        text = tag.group()
        if text.startswith((b"<!--", b"<?")):
            continue
        if b"'" in text:
            yield f"{refused}: it has attributes in single quotes; write double ones"
            return
        if b"\n" in text or b"\r" in text:
            yield f"{refused}: it has a line break within an element; join the lines"
            return

"""Turn statements into functions shared by ranks, repetitions into loops, and numbers into constants or formulas.

Input: per rank and stream a list of statements (operations with numbers; see `statements`). Output: C++ functions, as
short as possible, since a compiler takes minutes for thousands of lines. `functions` finds ranks whose statements
differ in numbers only; such ranks (the function's members) share a function. `pieces` finds repetitions, which become
loops over `turn`. Then each number has a value per member and turn, and `Columns.text` writes all of them as one text,
the first that fits:

    a constant                      4
    a linear function               2 * me - turn + 1
    a neighbour in a ring of ranks  wrap(me + 1)
    a rank that differs in a bit    (me ^ 4)
    a column of a table             row[0]

Three statements of each of four ranks, which signal their successor and wait for their predecessor:

>>> def ring(me):
...     after, before = (me + 1) % 4, (me - 1) % 4
...     return [Statement(("signal",), (after, 0)), Statement(("wait",), (before, 0)), Statement(("sync",), ())]
>>> [[function]] = functions([[ring(rank)] for rank in range(4)], size_count=0)  # one stream, one function for all
>>> for line in function.body: print(line)
w.signal(wrap(me + 1), 0);
w.wait(wrap(me + 3), 0);
if (w.sync()) return true;
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from antiphon.core.columns import Longs
from antiphon.formats.device.statements import Statement

MAX_LOOP = 64  # statements of a loop
MIN_SAVED = 6  # statements that a loop must save
MIN_TURNS = 3  # of a loop: two turns are plainer as they are
FACTOR = re.compile(r"\w+|wrap\(.*\)|row\[\d+\]|\(me \^ .*\)")  # texts that need no parentheses as a factor


class Piece(NamedTuple):
    """`length` statements from `first` on, repeated `times` times."""

    first: int
    length: int
    times: int


def pieces(forms: Sequence[int]) -> list[Piece]:
    """Cut a list of forms (numbers of kinds of statements) into loops and plain stretches. O(n * MAX_LOOP).

    >>> pieces([1, 2, 2, 2, 2, 2, 2, 2, 2, 3])
    [Piece(first=0, length=1, times=1), Piece(first=1, length=1, times=8), Piece(first=9, length=1, times=1)]
    """
    loops: list[Piece] = []
    at, plain_start = 0, 0
    while at < len(forms):
        best = max((_repeats_at(forms, at, count) for count in range(1, MAX_LOOP + 1)), key=_saved_lines)
        if best.times < MIN_TURNS or _saved_lines(best) < MIN_SAVED:
            at += 1
            continue
        if plain_start < at:
            loops.append(Piece(plain_start, at - plain_start, times=1))
        loops.append(best)
        at = plain_start = at + best.length * best.times
    if plain_start < len(forms):
        loops.append(Piece(plain_start, len(forms) - plain_start, times=1))
    return loops


def _repeats_at(forms: Sequence[int], at: int, count: int) -> Piece:
    """Return the `count` forms from `at` on, with the number of times that they follow each other there."""
    body, times = forms[at : at + count], 1
    while len(body) == count and forms[at + times * count : at + (times + 1) * count] == body:
        times += 1
    return Piece(at, count, times)


def _saved_lines(piece: Piece) -> int:
    return piece.length * (piece.times - 1)


@dataclass
class Columns:
    """Texts for the numbers of a loop or stretch.

    `me`: the members' ranks. `tabulated`: numbers without a formula, each an array [member, turn].
    """

    ranks: int
    me: Longs
    tabulated: list[Longs] = field(default_factory=list)

    def text(self, values: Longs) -> str:
        """Return the text for `values`, an array by member and turn; tabulate them if no formula fits."""
        # try from the simplest text to the most general: constant, linear, circular, XOR, table
        first = int(values[0, 0])
        if (values == first).all():
            return str(first)
        # linear: first + by_me * (me - first member) + by_turn * turn
        turn = np.arange(values.shape[1])
        by_me, by_turn = self._find_slopes(values)
        linear = first + by_me * (self.me[:, None] - self.me[0]) + by_turn * turn
        if (values == linear).all():
            return _sum_text(first - by_me * int(self.me[0]), by_me, by_turn)
        # circular: neighbours in a ring of all ranks, such as wrap(me + 1)
        if values.min() >= 0 and values.max() < self.ranks and (values == linear % self.ranks).all():
            by_me, by_turn = (_nearest_slope(slope, self.ranks) for slope in (by_me, by_turn))
            return f"wrap({_sum_text((first - by_me * int(self.me[0])) % self.ranks, by_me, by_turn)})"
        # recursive halving and doubling: the partner's number differs in one bit
        bits = values ^ self.me[:, None]
        slope = int(bits[0, 1] - bits[0, 0]) if len(turn) > 1 else 0
        if (bits == int(bits[0, 0]) + slope * turn).all():
            bits_text = _sum_text(int(bits[0, 0]), by_me=0, by_turn=slope)
            return f"(me ^ {bits_text})" if slope == 0 else f"(me ^ ({bits_text}))"
        # a column that is in the table already is used again
        for at, column in enumerate(self.tabulated):
            if np.array_equal(column, values):
                return f"row[{at}]"
        self.tabulated.append(values)
        return f"row[{len(self.tabulated) - 1}]"

    def _find_slopes(self, values: Longs) -> tuple[int, int]:
        """Return how much values grow per rank and per turn, from the first two of each."""
        by_turn = int(values[0, 1] - values[0, 0]) if values.shape[1] > 1 else 0
        if len(self.me) < 2:
            return 0, by_turn
        value_step, rank_step = int(values[1, 0] - values[0, 0]), int(self.me[1] - self.me[0])
        return value_step // rank_step if value_step % rank_step == 0 else 0, by_turn


def _nearest_slope(slope: int, ranks: int) -> int:
    """Return the slope of least size that is equal modulo `ranks`."""
    slope %= ranks
    return slope - ranks if slope > ranks // 2 else slope


def _sum_text(constant: int, by_me: int, by_turn: int) -> str:
    """Return a linear function of the rank and the turn as C++.

    >>> _sum_text(-1, 1, -2)
    'me - 2 * turn - 1'
    """
    terms = [(by_me, "me"), (by_turn, "turn"), (constant, "")]
    text = ""
    for slope, name in terms:
        if not slope:
            continue
        size = name if abs(slope) == 1 and name else f"{abs(slope)} * {name}" if name else str(abs(slope))
        text += (" - " if slope < 0 else " + ") + size if text else ("-" if slope < 0 else "") + size
    return text or "0"


def times(text: str, unit: str) -> str:
    """Return a product as C++.

    >>> times("1", "u"), times("me + 1", "u"), times("3", "u")
    ('u', '(me + 1) * u', '3 * u')
    """
    if text == "1":
        return unit
    return f"{text} * {unit}" if FACTOR.fullmatch(text) else f"({text}) * {unit}"


def _strip_parentheses(text: str) -> str:
    """Strip the outer parentheses where a text stands alone."""
    return text[1:-1] if text.startswith("(me ^") else text


def _place_text(buffer: str, texts: Iterator[str], size_count: int) -> str:
    """Return a pointer as C++: the buffer of a rank plus whole units and a cut (`c`: rounded shares of a unit).

    `texts`: of the rank, the units and the cut, in this order; in scratch then of `origin_cut` and of the slots.
    In scratch, the slots before it are added (`s`: one count for each of the `size_count` sizes of slots), and the cut
    at which the data of its slot begin, `origin_cut`, is subtracted: units and cut count from there.
    For packets (buffer "box"): rank and slot.
    """
    if buffer == "box":
        return f"w.box({_strip_parentheses(next(texts))}, {_strip_parentheses(next(texts))})"
    terms = [f"w.{buffer}({_strip_parentheses(next(texts))})"]
    units, cut = next(texts), next(texts)
    terms += [times(units, "u")] if units != "0" else []
    origin_cut = next(texts) if buffer == "scratch" else "0"
    terms += [f"c[{cut}]"] if cut not in ("0", origin_cut) else []
    if buffer == "scratch":
        slots = [(next(texts), f"s[{number}]") for number in range(size_count)]
        terms += [times(count, name) for count, name in slots if count != "0"]
        terms += [f"-c[{origin_cut}]"] if origin_cut not in ("0", cut) else []
    return " + ".join(terms).replace("+ -", "- ")


def line_of(form: tuple[str, ...], texts: Iterator[str], size_count: int) -> str:
    """Return a statement as C++ from the texts of its numbers, which are taken from `texts` in their order.

    `wait_begun` and `sync_begun` do nothing once all ranks are known to have begun the call. `to` and `from` list the
    places of an operation that has too many for one line; `..._listed` then carries it out.
    """
    # The branches take the numbers in the order of `Statement.values`: those of its places, then two of its data (a
    # cut where they begin, and the length in cuts). Of an operation with places, `form` has the name, the number of
    # results, and the buffers of results and then of operands.
    name = form[0]
    # `w.step` is true once the function has done its part of this launch, which is no stop: then it returns false. A
    # sync is true where the call was stopped: then it returns true.
    if name in ("step", "sync", "sync_begun"):
        condition = {"step": "w.step({})", "sync": "w.sync()", "sync_begun": "w.opens() && w.sync()"}[name]
        return f"if ({condition.format(next(texts, ''))}) return {str(name != 'step').lower()};"
    if name in ("signal", "wait", "wait_begun"):
        return f"w.{name}({_strip_parentheses(next(texts))}, {next(texts)});"
    if name in ("to", "from"):
        return f"w.{name}({_place_text(form[1], texts, size_count)});"
    if name.endswith("_listed"):
        # A spread copies one operand, which the sum of one operand does, too. `Rule`: the call's operator.
        name = {"fold_listed": "combine_listed<Rule>", "spread_listed": "combine_listed<Sum>"}.get(name, name)
        return f"w.{name}({{{next(texts)}, {next(texts)}}});"
    if name == "divide":
        return f"w.divide({_place_text(form[1], texts, size_count)}, {{{next(texts)}, {next(texts)}}}, {next(texts)});"
    places = [_place_text(buffer, texts, size_count) for buffer in form[2:]]
    results = int(form[1])
    span = f"{{{next(texts)}, {next(texts)}}}"
    if name == "copy":
        return f"w.copy({places[0]}, {places[1]}, {span});"
    if name == "relay":
        addresses = (place if place.startswith("w.box") else f"w.at({place})" for place in places)
        return f"w.relay<{results}, {len(places) - results}>({{{', '.join(addresses)}}}, {span});"
    to, source = ", ".join(places[:results]), ", ".join(places[results:])
    return f"w.{name}<{results}, {len(places) - results}>({{{{{to}}}, {{{source}}}}}, {span});"


class Function:
    """The function of some ranks (`members`) in a stream: its `name`, and its text with the tables that it needs.

    `streams`: per member the statements, which differ in numbers only. `ranks`: number of ranks of the plan.
    """

    def __init__(
        self, name: str, members: Sequence[int], streams: Sequence[Sequence[Statement]], ranks: int, size_count: int
    ) -> None:
        self.name, self.members, self.size_count, self.ranks = name, list(members), size_count, ranks
        # Where the host launches step by step, a statement is carried out in its own step only.
        self.by_steps = any(statement.form == ("step",) for statement in streams[0])
        self.tables: list[str] = []
        self.statement_count = 0
        self.me = np.array(self.members, np.int64)
        # statements with the same form are equal up to their numbers; loops are found on these form numbers
        forms: dict[tuple[str, ...], int] = {}
        numbers = [forms.setdefault(statement.form, len(forms)) for statement in streams[0]]
        self.form_of = [statement.form for statement in streams[0]]
        self.values = [
            np.array([stream[at].values for stream in streams], np.int64).reshape(len(streams), -1)
            for at in range(len(numbers))
        ]
        self.body = [line for piece in pieces(numbers) for line in self._piece_lines(piece)]

    def _piece_lines(self, piece: Piece) -> list[str]:
        """Return the lines of a plain stretch or of a loop."""
        columns = Columns(self.ranks, self.me)
        lines = []
        for at in range(piece.first, piece.first + piece.length):
            # [member, turn, number]: one array per statement of the loop body
            stacked = np.stack([self.values[at + turn * piece.length] for turn in range(piece.times)], axis=1)
            texts = (columns.text(stacked[:, :, number]) for number in range(stacked.shape[2]))
            line = line_of(self.form_of[at], texts, self.size_count)
            if self.by_steps and self.form_of[at] != ("step",):
                is_conditional = line.startswith("if (")
                line = line.replace("if (", "if (w.in_launch && ", 1) if is_conditional else f"if (w.in_launch) {line}"
            lines.append(line)
        self.statement_count += len(lines)
        row = self._row_lines(columns, piece.times)
        if piece.times == 1:
            return [*row, *lines]
        loop = f"for (i64 turn = 0; turn < {piece.times}; ++turn) {{"
        return [loop, *(f"    {line}" for line in (*row, *lines)), "}"]

    def _row_lines(self, columns: Columns, turns: int) -> list[str]:
        """Add the table of a piece, if it needs one; return the line that looks up this rank's row."""
        if not columns.tabulated:
            return []
        name = f"{self.name}_{len(self.tables)}"
        table = np.stack(columns.tabulated, axis=2)
        shape = "".join(f"[{size}]" for size in table.shape)
        rows = ",\n".join(
            "    {" + ", ".join("{" + ", ".join(map(str, row)) + "}" for row in rows_of_member) + "}"
            for rows_of_member in table.tolist()
        )
        self.tables.append(f"ON_TABLE i64 {name}{shape} = {{\n{rows}}};\n")
        member = "w.member" if len(self.members) > 1 else "0"
        return [f"row = {name}[{member}][{'turn' if turns > 1 else '0'}];"]

    def text(self) -> str:
        """Return the C++ of the function behind its tables; it returns true where the call was stopped."""
        body = "\n".join(f"    {line}" for line in self.body)
        # C++ locals that the body uses: rank, elements of a unit, cuts of units, strides of scratch slots, table row
        head = [
            f"    {declared};\n"
            for name, declared in (
                ("me", "const i64 me = w.me"), ("u", "const i64 u = w.call.line.unit"),
                ("c", "const i64 *const c = w.call.line.cuts"), ("s", "const i64 *const s = w.call.strides"),
                ("row", "const i64 *row"),
            )
            if re.search(rf"(?<![\w.]){name}\b(?!\()", body)
        ]  # fmt: skip
        comment = f"/* {_members_text(self.members, self.ranks)}. */\n"
        start = f"{comment}OUT_OF_LINE bool {self.name}(Work &w) {{\n"
        return "".join(self.tables) + start + "".join(head) + body + "\n    return false;\n}\n"


def _members_text(members: list[int], ranks: int) -> str:
    if len(members) == ranks:
        return "All ranks"
    return f"Rank{'s' if len(members) > 1 else ''} {', '.join(map(str, members))}"


def functions(
    ranks: Sequence[Sequence[Sequence[Statement]]], size_count: int, name: str = "stream"
) -> list[list[Function]]:  # fmt: skip
    """Return the functions of each stream. `ranks`: the streams of statements of every rank; `size_count`:
    number of sizes of scratch slots; `name`: prefix of the functions' names."""
    by_stream: list[list[Function]] = []
    for number in range(max(len(streams) for streams in ranks)):
        # ranks whose statements have the same forms share a function
        groups: dict[tuple[tuple[str, ...], ...], list[int]] = {}
        for rank, streams in enumerate(ranks):
            if number < len(streams) and streams[number]:
                groups.setdefault(tuple(statement.form for statement in streams[number]), []).append(rank)
        by_stream.append([])
        for members in groups.values():
            suffix = f"_rank_{members[0]}" if len(members) == 1 else "" if len(groups) == 1 else f"_like_{members[0]}"
            member_streams = [ranks[rank][number] for rank in members]
            function_name = f"{name}_{number}{suffix}"
            by_stream[-1].append(
                Function(function_name, members, member_streams, ranks=len(ranks), size_count=size_count)
            )
    return by_stream

"""Whether all that touches the same elements of a rank's buffers is ordered by waits."""

from __future__ import annotations

from collections import defaultdict

from antiphon.core.program.kinds import FOLD, INPUT, RECEIVE, Bound, Program
from antiphon.core.program.run import told
from antiphon.errors import Invalid

Access = tuple[int, int, bool]  # operation, piece, whether it writes


def refuse_hazards(program: Program, bound: Bound) -> None:
    """Of every two instances of which one writes what the other touches, the later must wait for the earlier.

    Later is who has the higher number (of an operation, then of a piece). Waits count through other operations.
    Python: instances times the stretches between all beginnings and ends that they cover.
    """
    for rank in range(program.ranks):
        _Rank(program, bound, rank).go()


class _Rank:
    def __init__(self, program: Program, bound: Bound, rank: int) -> None:
        self.program, self.bound = program, bound
        self.rows = range(int(program.op_ptr[rank]), int(program.op_ptr[rank + 1]))
        self.pieces: dict[int, int] = {row: int(program.pieces[row]) for row in self.rows}
        ptr = program.wait_ptr
        self.waits = {row: program.wait[ptr[row] : ptr[row + 1]].tolist() for row in self.rows}
        self.known: dict[tuple[int, int], tuple[bool, bool]] = {}

    def go(self) -> None:
        for touched in self._by_buffer().values():
            marks = sorted({edge for low, high, _ in touched for edge in (low, high)})
            number = {mark: i for i, mark in enumerate(marks)}
            cells: list[list[Access]] = [[] for _ in marks]
            for low, high, access in touched:
                for nth in range(number[low], number[high]):
                    cells[nth].append(access)
            for cell in cells:
                self._judge(cell)

    def _by_buffer(self) -> dict[int, list[tuple[int, int, Access]]]:
        """What is touched, in the order of operations and pieces; the input is only read."""
        program = self.program
        found: dict[int, list[tuple[int, int, Access]]] = defaultdict(list)
        for row in self.rows:
            kind = int(program.kind[row])
            for piece in range(self.pieces[row]):
                for nth, part in enumerate(range(int(program.part_ptr[row]), int(program.part_ptr[row + 1]))):
                    low, high = self.bound.piece(part, piece, self.pieces[row])
                    buffer = int(self.bound.buffer[part])
                    if buffer != INPUT and low < high:
                        written = kind == RECEIVE or (kind == FOLD and nth == 0)
                        found[buffer].append((low, high, (row, piece, written)))
        return found

    def _judge(self, cell: list[Access]) -> None:
        """The accesses of one stretch, in order: each after the last write, a write also after the reads since."""
        last: Access | None = None
        reads: list[Access] = []
        for access in cell:
            if last is not None:
                self._ordered(last, access)
            if access[2]:
                for read in reads:
                    self._ordered(read, access)
                last, reads = access, []
            else:
                reads.append(access)

    def _ordered(self, before: Access, after: Access) -> None:
        (y, j, _), (x, i, _) = before, after
        if x == y and i == j:
            return  # a fold's result on its operand
        piecewise, whole = self._path(y, x)
        if x == y or not (whole or (piecewise and i == j)):
            names = told(self.program, x), told(self.program, y)
            raise Invalid(
                f"{names[0]}: does not wait for {names[1].partition(', ')[2]}, which touches the same elements"
            )

    def _path(self, y: int, x: int) -> tuple[bool, bool]:
        """Whether x waits for y piece by piece, and whether all of x waits for all of y."""
        if (y, x) in self.known:
            return self.known[y, x]
        piecewise = whole = False
        todo, seen = [(x, False)], {(x, False)}
        while todo and not whole:
            at, all_of = todo.pop()
            for w in self.waits[at]:
                state = (w, all_of or self.pieces[w] != self.pieces[at] or self.pieces[w] == 1)
                if w < y or state in seen:
                    continue
                seen.add(state)
                if w != y:
                    todo.append(state)
                elif state[1]:
                    whole = True
                else:
                    piecewise = True
        self.known[y, x] = piecewise, whole
        return piecewise, whole

"""Random programs in the language: they mean what they say, their steps are the least, and what is wrong has a line.

A program is a list of lines, each one statement or a block of statements that happen at once. What it means is told
here anew: places are texts, values are counted contributions, statements are done one after the other. When each can
be is told pair by pair.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

import antiphon
from antiphon.core.verify import verify
from antiphon.errors import Invalid

RANKS = 4
KINDS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
FILE = "program.py"

Cell = tuple[int, str, int]  # rank, "" or the name of the scratch, the datum (its global number) or the index there
TMP = 2  # places of the scratch that different data share


class Line(NamedTuple):
    """A statement: from a place to a place, of a datum; and its text."""

    src: Cell
    dst: Cell
    add: bool
    datum: int
    text: str


class Unit(NamedTuple):
    """A statement, or several that happen at once; `said`: in a step of their own."""

    lines: tuple[Line, ...]
    said: bool = False


def data_of(kind: str, chunks: int) -> dict[int, tuple[dict[int, str], dict[int, str]]]:
    """Of every datum where it lies in the inputs and in the outputs, as the page says: by rank the place's text."""
    every = range(RANKS)
    found: dict[int, tuple[dict[int, str], dict[int, str]]] = {}
    blocks = {"allreduce": 1, "broadcast": 1, "reduce": 1, "alltoall": RANKS * RANKS}.get(kind, RANKS)
    for datum in range(blocks * chunks):
        block, part = divmod(datum, chunks)
        alone, whole = f'"{{}}", {part}', f'"{{}}", {datum}'
        if kind == "alltoall":
            to, source = divmod(block, RANKS)
            inputs = {source: f'"input", {to * chunks + part}'}
            outputs = {to: f'"output", {source * chunks + part}'}
        else:
            one = [0] if kind in ("broadcast", "reduce") else [block]
            senders = one if kind in ("allgather", "broadcast") else every
            takers = one if kind in ("reducescatter", "reduce") else every
            inputs = {r: (alone if kind == "allgather" else whole).format("input") for r in senders}
            outputs = {r: (alone if kind == "reducescatter" else whole).format("output") for r in takers}
        found[datum] = (inputs, outputs)
    return found


class Maker:
    """Makes random programs of one collective."""

    def __init__(self, rng: random.Random, kind: str, chunks: int) -> None:
        self.rng, self.kind, self.chunks = rng, kind, chunks
        self.data = data_of(kind, chunks)
        self.held: dict[Cell, int] = {}

    def line(self, datum: int, a: int, b: int, add: bool, tmp: bool = False) -> Line | None:
        """From rank to rank, where it belongs or to a place that others use too; None where the source has none."""
        src = self._place(a, datum)
        if src is None or (b == a and not tmp):
            return None
        cell, to = (b, "", datum), ""
        if tmp:
            cell = (b, "tmp", self.rng.randrange(TMP))
            to = f', "tmp", {cell[2]}'
        elif not any(b in side for side in self.data[datum]):  # what passes lies in scratch
            cell = (b, "scratch", datum)
        if cell == src[0]:
            return None
        self.held[cell] = datum
        verb = "reduce_to" if add else "copy_to"
        return Line(src[0], cell, add, datum, f"w[{a}, {src[1]}].{verb}({b}{to})")

    def _place(self, rank: int, datum: int) -> tuple[Cell, str] | None:
        """Where a rank has a datum, and how that is called; at times where it lies in scratch."""
        found = [((rank, "", datum), side[rank]) for side in self.data[datum] if rank in side]
        aside = [
            (cell, f'"{cell[1]}", {cell[2]}')
            for cell, held in self.held.items()
            if held == datum and cell[0] == rank and cell[1]
        ]
        return self.rng.choice(found + aside) if found or aside else None

    def right(self) -> list[Unit]:
        """A right program: every datum gathered along a random tree and spread along another."""
        each = []
        for datum, (inputs, outputs) in self.data.items():
            mine: list[Unit] = []
            root = self.rng.choice(list(inputs))
            for rank in self.rng.sample(list(inputs), len(inputs)):
                if rank != root and (found := self.line(datum, rank, root, True)):
                    mine.append(Unit((found,)))
            reached = [root]
            for rank in self.rng.sample(range(RANKS), RANKS):
                if rank == root or (rank not in outputs and self.rng.random() < 0.7):
                    continue
                if found := self.line(datum, self.rng.choice(reached), rank, False):
                    mine.append(Unit((found,)))
                    reached.append(rank)
            each.append(mine)
        return [mine.pop(0) for mine in self._turns(each)]

    def _turns(self, each: list[list[Unit]]) -> Iterable[list[Unit]]:
        turns = [mine for mine in each for _ in mine]
        self.rng.shuffle(turns)
        return turns

    def any(self, count: int, together: bool = True) -> list[Unit]:
        """Statements at random, most of them useless."""
        units: list[Unit] = []
        for _ in range(count):
            size = self.rng.randint(2, 3) if together and self.rng.random() < 0.3 else 1
            unit: list[Line] = []
            for _ in range(size):
                a, b = self.rng.choices(range(RANKS), k=2)
                datum, add = self.rng.choice(list(self.data)), self.rng.random() < 0.5
                found = self.line(datum, a, b, add, tmp=self.rng.random() < 0.3)
                if found and all(found.dst != one.dst or (found.add and one.add) for one in unit):
                    unit.append(found)
            if unit:
                units.append(Unit(tuple(unit), self.rng.random() < 0.1))
        return units


def source(kind: str, chunks: int, units: list[Unit]) -> tuple[str, list[int]]:
    """The program's text, and of every statement its line."""
    out, at = [f"with antiphon.write({kind!r}, 'full:ranks={RANKS}', chunks={chunks}, verify=verify) as w:"], []
    for unit in units:
        indent = "    "
        if unit.said or len(unit.lines) > 1:
            out.append("    with w.step():" if unit.said else "    with w.together():")
            indent *= 2
        for line in unit.lines:
            out.append(indent + line.text)
            at.append(len(out))
    return "\n".join([*out, "    pass", ""]), at


def written(kind: str, chunks: int, units: list[Unit], verify: bool = False) -> antiphon.Writing:
    names: dict[str, Any] = {"antiphon": antiphon, "verify": verify}
    exec(compile(source(kind, chunks, units)[0], FILE, "exec"), names)
    found = names["w"]
    assert isinstance(found, antiphon.Writing)
    return found


def meaning(maker: Maker, units: list[Unit]) -> dict[Cell, Counter[int]] | None:
    """What the cells hold in the end, done one after the other; None where something empty is read."""
    state: dict[Cell, Counter[int]] = {}
    for datum, (inputs, _) in maker.data.items():
        for rank in inputs:
            state[rank, "", datum] = Counter([rank])
    for unit in units:
        before = dict(state)
        for line in unit.lines:
            if line.src not in before:
                return None
            state[line.dst] = Counter(before[line.src])
        for cell in {line.dst for line in unit.lines}:
            coming = [line for line in unit.lines if line.dst == cell]
            parts = [before[line.src] for line in coming]
            if coming[0].add and cell in before:
                parts.append(before[cell])
            state[cell] = sum(parts, Counter())
    return state


def is_right(maker: Maker, state: dict[Cell, Counter[int]] | None) -> bool:
    if state is None:
        return False
    return all(
        state.get((rank, "", datum)) == Counter(dict.fromkeys(inputs, 1))
        for datum, (inputs, outputs) in maker.data.items()
        for rank in outputs
    )


def least_steps(units: list[Unit]) -> list[int]:
    """By the page: after what it reads was written, not before what it replaces was read, pair by pair; a step that is
    said is after all before it, and before all after it."""
    steps: list[int] = []
    for later, unit in enumerate(units):
        least = 0
        for earlier in range(later):
            if unit.said or units[earlier].said:
                least = max(least, steps[earlier] + 1)
            for a in units[earlier].lines:
                for b in unit.lines:
                    if a.dst == b.src or (a.dst == b.dst and not (a.add and b.add)):
                        least = max(least, steps[earlier] + 1)
                    if a.src == b.dst:
                        least = max(least, steps[earlier])
        steps.append(least)
    return [step for step, unit in zip(steps, units, strict=True) for _ in unit.lines]


def independent(a: Unit, b: Unit) -> bool:
    """Whether it does not matter which of two is written first."""
    if a.said or b.said:
        return False
    for one, other in ((x, y) for x in a.lines for y in b.lines):
        if one.dst == other.src or one.src == other.dst:
            return False
        if one.dst == other.dst and not (one.add and other.add):
            return False
    return True


def shuffled(rng: random.Random, units: list[Unit]) -> list[Unit]:
    """The same, with neighbours that are independent of each other swapped many times."""
    out = list(units)
    for _ in range(4 * len(out) ** 2):
        at = rng.randrange(max(len(out) - 1, 1))
        if at + 1 < len(out) and independent(out[at], out[at + 1]):
            out[at], out[at + 1] = out[at + 1], out[at]
    return out


def made(seed: int) -> tuple[random.Random, Maker, list[Unit]]:
    """A program that is right, or damaged, or arbitrary."""
    rng = random.Random(seed)
    maker = Maker(rng, rng.choice(KINDS), rng.randint(1, 2))
    luck = rng.random()
    if luck < 0.4:
        return rng, maker, maker.any(rng.randint(1, 12))
    units = maker.right()
    if luck < 0.7 and units:
        at = rng.randrange(len(units))
        damage = rng.choice(["drop", "double", "move", "add"])
        unit = units.pop(at)
        if damage == "double":
            units[at:at] = [unit, unit]
        elif damage == "move":
            units.insert(rng.randint(0, len(units)), unit)
        elif damage == "add":
            units[at:at] = [unit, *maker.any(1)]
    return rng, maker, units


def refused(units: list[Unit]) -> bool:
    """Whether scratch is read that does not hold the datum (then), or added to while it holds another, or another comes
    there in the same step."""
    there: dict[Cell, int] = {}
    for unit in units:
        for line in unit.lines:
            if line.src[1] and there.get(line.src) != line.datum:
                return True
            if line.add and there.get(line.dst, line.datum) != line.datum:
                return True
        coming = {(line.dst, line.datum) for line in unit.lines}
        if len(coming) > len({line.dst for line in unit.lines}):
            return True
        there |= dict(coming)
    return False


def outcome(maker: Maker, units: list[Unit]) -> antiphon.Writing | str:
    """What is written, or what is said against it."""
    try:
        return written(maker.kind, maker.chunks, units, verify=True)
    except Invalid as error:
        return str(error)


@given(st.integers(0, 2**32))
def test_a_program_is_right_if_its_meaning_is_and_else_names_a_line(seed: int) -> None:
    _, maker, units = made(seed)
    text, lines = source(maker.kind, maker.chunks, units)
    found = outcome(maker, units)
    if isinstance(found, str):
        told = re.match(rf"((?:{FILE}:\d+(?:, )?)+)(?:\.\.\.)?: ", found)
        assert told, found
        assert {int(number) for number in re.findall(rf"{FILE}:(\d+)", told[1])} <= {1, *lines}, (found, text)
        assert refused(units) or not is_right(maker, meaning(maker, units)), (found, text)
    else:
        assert not refused(units)
        assert is_right(maker, meaning(maker, units)), text
        assert found.lines == tuple(f"{FILE}:{number}" for number in lines)


@given(st.integers(0, 2**32))
def test_steps_are_the_least_that_the_data_allow(seed: int) -> None:
    _, maker, units = made(seed)
    if not refused(units):
        w = written(maker.kind, maker.chunks, units)
        assert w.schedule.step.tolist() == least_steps(units), source(maker.kind, maker.chunks, units)[0]


@given(st.integers(0, 2**32))
def test_the_order_of_independent_statements_changes_nothing(seed: int) -> None:
    rng, maker, units = made(seed)
    if refused(units):
        return
    one = written(maker.kind, maker.chunks, units)
    other = written(maker.kind, maker.chunks, shuffled(rng, units))
    assert one.schedule.same_as(other.schedule)
    assert verify(one.schedule, one.topology).ok == verify(other.schedule, other.topology).ok


def test_random_programs_are_of_all_kinds() -> None:
    """Right and wrong ones, with and without scratch and blocks, and such as can be ordered otherwise."""
    seen: Counter[str] = Counter()
    for seed in range(300):
        rng, maker, units = made(seed)
        right = not refused(units) and is_right(maker, meaning(maker, units))
        seen["right" if right else "wrong"] += 1
        seen["refused"] += refused(units)
        seen["together"] += any(len(unit.lines) > 1 for unit in units)
        seen["said"] += any(unit.said for unit in units)
        seen["scratch"] += not refused(units) and any(line.src[1] == "tmp" for unit in units for line in unit.lines)
        seen["passing"] += any(line.src[1] == "scratch" for unit in units for line in unit.lines)
        seen["other order"] += shuffled(rng, units) != units
    assert len(seen) == 8
    assert min(seen.values()) >= 10, seen

"""A second judge of programs, written from docs/program.md alone: element by element, at one size.

It shares nothing with the product but the columns of a program and the relation of its collective. Addresses are whole
numbers; every element is the multiset of what was added up in it. All waits are closed transitively, instance by
instance, and every two accesses of an element are compared; then one run without buffers decides what comes out.
"""

from collections import Counter, defaultdict
from typing import Any

from antiphon.core.program import Program

Value = tuple[tuple[tuple[int, int, int], int], ...]  # (block, contribution, element) and how often


class Wrong(Exception):
    pass


def judge(program: Program, unit: int, strict: bool = False) -> None:
    """Wrong, and why, where the program is not its collective at this size."""
    _Judge(program, unit).go(strict)


def _up(top: int, bottom: int) -> int:
    return (top + bottom - 1) // bottom


class _Judge:
    def __init__(self, program: Program, unit: int) -> None:
        self.p, self.unit, self.ranks = program, unit, program.ranks
        columns: dict[str, Any] = {
            name: getattr(program, name).tolist()
            for name in (
                "point_whole", "point_part", "base_ptr", "base_shift", "base_buffer", "base_slot", "base_origin",
                "class_whole", "class_part", "class_pieces", "slot_ptr", "slot_class", "op_ptr", "kind", "channel",
                "peer", "pieces", "when", "part_ptr", "part_begin", "part_end", "part_base", "wait_ptr", "wait",
                "finish_ptr", "finish_begin", "finish_end", "finish_base", "finish_count",
            )
        }  # fmt: skip
        self.c = columns
        d = program.denominator
        self.at = [unit * w + unit * f // d for w, f in zip(columns["point_whole"], columns["point_part"], strict=True)]
        self.rank_of = [r for r in range(self.ranks) for _ in range(columns["op_ptr"][r], columns["op_ptr"][r + 1])]
        self.stride = [
            _up(_up(unit * (w * d + f), d), n)
            for w, f, n in zip(columns["class_whole"], columns["class_part"], columns["class_pieces"], strict=True)
        ]
        self._users()

    # ---- what the collective says ----

    def _users(self) -> None:
        """The users' buffers: where each block stands, and what is in it, by docs and relation."""
        collective, relation = self.p.collective, self.p.collective.relation
        weights = collective.weights.tolist()
        have: dict[tuple[int, int], list[int]] = defaultdict(list)
        names: dict[int, set[int]] = defaultdict(set)
        rows = zip(relation.pre_block.tolist(), relation.pre_rank.tolist(), relation.pre_id.tolist(), strict=True)
        for block, rank, name in rows:
            have[rank, block].append(name)
            names[block].add(name)
        need: dict[tuple[int, int], list[int]] = {}
        rows = zip(relation.post_block.tolist(), relation.post_rank.tolist(), relation.post_want.tolist(), strict=True)
        for block, rank, want in rows:
            need[rank, block] = sorted(names[block]) if want < 0 else list(relation.wants[want])
        self.memory: list[list[dict[int, Value]]] = [[{}, {}, {}] for _ in range(self.ranks)]
        self.sizes = [[0, 0, 0] for _ in range(self.ranks)]
        self.result: dict[tuple[int, int], Value] = {}
        self.untouched: list[set[int]] = [set() for _ in range(self.ranks)]
        for rank in range(self.ranks):
            mine = sorted(b for r, b in have if r == rank)
            theirs = sorted(b for r, b in need if r == rank)
            if self.p.in_place and collective.kind != "alltoall":
                both = sorted({*mine, *theirs})
                first = last = self._stand(both, weights)
                sizes = [sum(weights[b] for b in both)] * 2
            else:
                first, last = self._stand(mine, weights), self._stand(theirs, weights)
                sizes = [sum(weights[b] for b in side) for side in (mine, theirs)]
            self.sizes[rank][:2] = [self.unit * n for n in sizes]
            source = self.memory[rank][1 if self.p.in_place else 0]
            for block in mine:
                for i in range(weights[block] * self.unit):
                    held = Counter((block, name, i) for name in have[rank, block])
                    source[first[block] * self.unit + i] = tuple(sorted(held.items()))
            before = set(source)
            for block in theirs:
                for i in range(weights[block] * self.unit):
                    wanted = Counter((block, name, i) for name in need[rank, block])
                    self.result[rank, last[block] * self.unit + i] = tuple(sorted(wanted.items()))
            if self.p.in_place:
                self.untouched[rank] = {i for i in before if (rank, i) not in self.result}

    @staticmethod
    def _stand(blocks: list[int], weights: list[int]) -> dict[int, int]:
        found, at = {}, 0
        for block in blocks:
            found[block] = at
            at += weights[block]
        return found

    # ---- what the operations touch ----

    def _part(self, part: int, piece: int, pieces: int, rank: int) -> tuple[int, int, int]:
        """Buffer, first element and length of a piece of a part."""
        c = self.c
        base = c["part_base"][part]
        begin, end = self.at[c["part_begin"][part]], self.at[c["part_end"][part]]
        length, buffer = end - begin, c["base_buffer"][base]
        if not c["base_ptr"][rank] <= base < c["base_ptr"][rank + 1] or length < 0:
            raise Wrong("a base of another rank, or a negative length")
        low, high = length * piece // pieces, length * (piece + 1) // pieces
        if buffer < 2:
            start = self.unit * c["base_shift"][base] + begin + low
            room = 0, self.sizes[rank][buffer]
        else:
            slots = c["slot_class"][c["slot_ptr"][rank] : c["slot_ptr"][rank + 1]]
            rooms = [c["class_pieces"][k] * self.stride[k] for k in slots]
            mine = c["base_slot"][base]
            offset = sum(rooms[:mine])
            start = offset + begin - self.at[c["base_origin"][base]]
            stride = self.stride[slots[mine]]
            room = offset, offset + rooms[mine]
            if pieces > 1:
                start += piece * stride
                room = offset + piece * stride, min(room[1], offset + (piece + 1) * stride)
        if high > low and not (room[0] <= start and start + high - low <= room[1]):
            raise Wrong("a part leaves its room")
        return buffer, start, high - low

    def _instances(self) -> None:
        c = self.c
        self.owner: list[tuple[int, int]] = []
        self.first: list[int] = []
        for op, pieces in enumerate(c["pieces"]):
            self.first.append(len(self.owner))
            self.owner += [(op, i) for i in range(pieces)]
        self.places: list[list[list[tuple[int, int]]]] = []  # per instance and part: its elements
        for op, piece in self.owner:
            parts = []
            for part in range(c["part_ptr"][op], c["part_ptr"][op + 1]):
                buffer, start, length = self._part(part, piece, c["pieces"][op], self.rank_of[op])
                parts.append([(buffer, start + i) for i in range(length)])
            self.places.append(parts)
        self.needs: list[list[int]] = []
        for op, piece in self.owner:
            found = []
            for other in c["wait"][c["wait_ptr"][op] : c["wait_ptr"][op + 1]]:
                if self.rank_of[other] != self.rank_of[op] or other >= op:
                    raise Wrong("it waits for what is not before it")
                some = [piece] if c["pieces"][other] == c["pieces"][op] else range(c["pieces"][other])
                found += [self.first[other] + i for i in some]
            self.needs.append(found)
        self.before: list[int] = []  # bits of all instances that are done before
        for needs in self.needs:
            bits = 0
            for one in needs:
                bits |= self.before[one] | 1 << one
            self.before.append(bits)

    def _writes(self, op: int, nth: int) -> bool:
        return self.c["kind"][op] == 1 or (self.c["kind"][op] == 2 and nth == 0)

    def _races(self) -> None:
        touched: dict[tuple[int, int, int], list[tuple[int, bool]]] = defaultdict(list)
        for at, (op, _) in enumerate(self.owner):
            for nth, elements in enumerate(self.places[at]):
                for buffer, i in elements:
                    if self._writes(op, nth) and (
                        buffer == 0 or (buffer == 1 and i in self.untouched[self.rank_of[op]])
                    ):
                        raise Wrong("it writes what it must leave alone")
                    touched[self.rank_of[op], buffer, i].append((at, self._writes(op, nth)))
        for accesses in touched.values():
            for n, (x, w) in enumerate(accesses):
                for y, v in accesses[:n]:
                    if (w or v) and x != y and not (self.before[x] >> y & 1 or self.before[y] >> x & 1):
                        raise Wrong("a race")
                    if w and v and x == y:
                        raise Wrong("one operation writes twice to an element")

    # ---- a run ----

    def go(self, strict: bool) -> None:
        c = self.c
        self._forms()
        self._instances()
        self._races()
        queue: dict[tuple[int, ...], list[int]] = defaultdict(list)
        keys = []
        for at, (op, piece) in enumerate(self.owner):
            full = any(self.places[at])
            message = c["kind"][op] < 2
            key: tuple[int, ...] = ()
            if strict:
                key = self.rank_of[op], c["channel"][op]
            elif message and full:
                key = self.rank_of[op], c["channel"][op], c["kind"][op], c["peer"][op]
            keys.append((c["when"][op] + 2 * piece, op, key, at))
        of = {}
        for _, _, key, at in sorted(keys):
            of[at] = key
            if key:
                queue[key].append(at)
        done: set[int] = set()
        started: set[int] = set()
        posted: dict[tuple[int, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        moving = True
        while moving:
            moving = False
            for at, (op, _) in enumerate(self.owner):
                key = of[at]
                if at in started or (key and queue[key][0] != at) or any(one not in done for one in self.needs[at]):
                    continue
                moving = True
                started.add(at)
                if key:
                    queue[key].pop(0)
                if not any(self.places[at]) or c["kind"][op] > 1:
                    self._fold(at)
                    done.add(at)
                    continue
                mine, peer = self.rank_of[op], c["peer"][op]
                way = (mine, peer, c["channel"][op]) if c["kind"][op] == 0 else (peer, mine, c["channel"][op])
                sends, receives = posted[way]
                (sends if c["kind"][op] == 0 else receives).append(at)
                while sends and receives:
                    a, b = sends.pop(0), receives.pop(0)
                    self._message(a, b)
                    done |= {a, b}
        if len(done) < len(self.owner):
            raise Wrong("a deadlock")
        self._results()

    def _forms(self) -> None:
        c = self.c
        for op, kind in enumerate(c["kind"]):
            parts = c["part_ptr"][op + 1] - c["part_ptr"][op]
            if kind not in (0, 1, 2, 3) or c["pieces"][op] < 1 or not 0 <= c["channel"][op] < self.p.channels:
                raise Wrong("an operation that makes no sense")
            if (kind < 2 and (parts < 1 or c["peer"][op] == self.rank_of[op])) or (kind == 2 and parts < 2):
                raise Wrong("an operation that makes no sense")
            if kind == 3 and parts:
                raise Wrong("a join with parts")
            if op and self.rank_of[op] == self.rank_of[op - 1] and c["when"][op] < c["when"][op - 1]:
                raise Wrong("times fall")

    def _value(self, at: int, place: tuple[int, int]) -> Value:
        rank = self.rank_of[self.owner[at][0]]
        found = self.memory[rank][place[0]].get(place[1])
        return (((-1, -1, -1), 1),) if found is None else found  # what was never written

    def _put(self, at: int, place: tuple[int, int], value: Value) -> None:
        self.memory[self.rank_of[self.owner[at][0]]][place[0]][place[1]] = value

    def _message(self, send: int, receive: int) -> None:
        source = [place for part in self.places[send] for place in part]
        target = [place for part in self.places[receive] for place in part]
        if len(source) != len(target):
            raise Wrong("a message of another length")
        values = [self._value(send, place) for place in source]
        for place, value in zip(target, values, strict=True):
            self._put(receive, place, value)

    def _fold(self, at: int) -> None:
        if not self.places[at] or self.c["kind"][self.owner[at][0]] != 2:
            return
        target, *operands = self.places[at]
        if any(len(one) != len(target) for one in operands):
            raise Wrong("a fold of other lengths")
        for one in operands:
            if one != target and set(one) & set(target):
                raise Wrong("a result partly on an operand")
        values = []
        for n in range(len(target)):
            total: Counter[tuple[int, int, int]] = Counter()
            for one in operands:
                total.update(dict(self._value(at, one[n])))
            values.append(tuple(sorted(total.items())))
        for place, value in zip(target, values, strict=True):
            self._put(at, place, value)

    def _results(self) -> None:
        c = self.c
        divided: Counter[tuple[int, int]] = Counter()
        by: dict[tuple[int, int], int] = {}
        for rank in range(self.ranks):
            for row in range(c["finish_ptr"][rank], c["finish_ptr"][rank + 1]):
                base = c["finish_base"][row]
                shift = self.unit * c["base_shift"][base]
                for i in range(self.at[c["finish_begin"][row]], self.at[c["finish_end"][row]]):
                    divided[rank, i + shift] += 1
                    by[rank, i + shift] = c["finish_count"][row]
                    if c["base_buffer"][base] != 1 or (rank, i + shift) not in self.result:
                        raise Wrong("something else is divided")
        for (rank, i), wanted in self.result.items():
            if self.memory[rank][1].get(i) != wanted:
                raise Wrong("a wrong result")
            many = sum(n for _, n in wanted)
            if divided[rank, i] > 1 or by.get((rank, i), 1) != many:
                raise Wrong("an avg divides it by another count")

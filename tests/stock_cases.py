"""Tables that say which algorithm of an MPI library is best where, and readers of what is written of them: made from
what the libraries document of their files, and sharing nothing with the writers."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import antiphon
from antiphon.core.plan import Entry, Plan

Span = tuple[int, int | None, Mapping[str, Any] | None]
OPEN_MPI = {"name": "Open MPI", "version": "5.0.11", "file": ""}
MPICH = {"name": "MPICH", "version": "5.0.2", "file": ""}


def openmpi(name: str, number: int, segment: int = 0, fan: int = 0) -> dict[str, Any]:
    return {**OPEN_MPI, "algorithm": name, "parameters": {"number": number, "segment": segment, "fan": fan}}


def mpich(name: str, file: str | Path, **parameters: int) -> dict[str, Any]:
    return {**MPICH, "file": str(file), "algorithm": name, "parameters": parameters}


def table(kind: str, ranks: int, spans: Sequence[Span], root: int | None = None) -> Plan:
    """A plan whose entries claim these of the library."""
    machine = antiphon.topology(f"full:ranks={ranks}")
    made = antiphon.plan(kind, machine, planner="direct", root=root)
    schedule = made.entries[0].schedule
    entries = [
        Entry(start, stop, schedule, {"served_by": "library", **({} if told is None else {"library": dict(told)})})
        for start, stop, told in spans
    ]
    return Plan(machine, made.collective, tuple(entries))


class OpenMpiRules:
    """What coll/tuned makes of a file of rules: numbers one after the other, # begins a comment."""

    def __init__(self, text: str) -> None:
        words = iter([word for line in text.splitlines() for word in line.split("#")[0].split()])

        def next_number() -> int:
            word = next(words)
            assert word == "0" or not word.startswith("0")  # it reads 010 as eight
            return int(word)

        self.rules: dict[int, list[tuple[int, list[tuple[int, ...]]]]] = {}
        for _ in range(next_number()):
            collective = next_number()
            assert 0 <= collective < 22
            sizes = []
            for _ in range(next_number()):
                processes = next_number()
                sizes.append((processes, [tuple(next_number() for _ in range(4)) for _ in range(next_number())]))
            assert all(rules[0][0] == 0 for _, rules in sizes)
            self.rules[collective] = sizes
        assert next(words, None) is None

    def choice(self, collective: int, processes: int, nbytes: int) -> tuple[int, int, int] | None:
        """Algorithm, fan and segment of a call; None: its own choice."""
        if collective not in self.rules:
            return None
        chosen = self.rules[collective][0][1]  # where all are for more, the first is taken
        for count, rules in self.rules[collective]:
            if count <= processes:
                chosen = rules
        best = chosen[0]
        for rule in chosen:
            if rule[0] > nbytes:
                break
            best = rule
        return best[1:] if best[1] else None  # type: ignore[return-value]


class MpichTree:
    """What MPICH makes of a selection file for one communicator: conditions on it are decided first, as far as no
    condition on messages stands before them; there it takes a smaller number of processes also for an equal one."""

    def __init__(self, text: str) -> None:
        self.tree = json.loads(text)

    def leaf(self, collective: str, processes: int, **call: Any) -> str | None:
        """The leaf of a call with its parameters; None where nothing fits. `call`: total, average, count, commutes,
        built_in, in_place, inter."""
        node, early = self.tree.get(f"collective={collective}"), True
        while node is not None:
            if leaf := next((key for key in node if key.startswith(("algorithm=", "composition="))), None):
                return " ".join([leaf.split("=")[1], *node[leaf]])
            early = early and all(k.startswith("comm_") or k.endswith("=any") for k in node)
            node = next((inner for key, inner in node.items() if self._holds(key, processes, call, early)), None)
        return None

    @staticmethod
    def _holds(key: str, processes: int, call: Mapping[str, Any], early: bool) -> bool:
        if key.endswith("=any"):
            return True
        known = {
            "comm_type=intra": not call.get("inter"), "comm_type=inter": bool(call.get("inter")),
            "comm_size=pow2": processes & (processes - 1) == 0, "comm_hierarchy=parent": call.get("parent", True),
            "comm_size=node_comm_size": call.get("one_node", True), "is_multi_threaded=no": True,
            "is_commutative=yes": call.get("commutes", True), "is_commutative=no": not call.get("commutes", True),
            "is_op_built_in=yes": call.get("built_in", True), "is_op_built_in=no": not call.get("built_in", True),
            "is_sendbuf_inplace=yes": bool(call.get("in_place")), "is_sendbuf_inplace=no": not call.get("in_place"),
            "count<pow2": call.get("count", 10**9) < 1 << (processes.bit_length() - 1),
        }  # fmt: skip
        if key in known:
            return bool(known[key])
        name, less, most = key.partition("<")
        value = {"comm_size": processes, "avg_msg_size": call.get("average"), "total_msg_size": call.get("total"),
                 "count": call.get("count", 10**9)}[name]  # fmt: skip
        assert less
        assert value is not None, f"{key}: MPICH has no such size of this collective"
        number = int(most.removeprefix("="))
        assert number < 2**31
        return value <= number if most.startswith("=") or (name == "comm_size" and not early) else value < number

"""Files of MSCCL XML, right ones and those changed in one to three places, against what the executor does with them.

Ours are written from schedules of many planners, others by hand (`tests/msccl_cases.py`). In a file attributes are
changed, steps removed, doubled and swapped, dependencies dropped, thread blocks swapped: what reads it and the machine
must find a fault just where an independent account of the executor (`_executor.py`) finds one, and name the rank.
"""

from __future__ import annotations

import random
import re
from collections import Counter

from _harness import CASES, Found, main
from _msccl_executor import verdict
from msccl_cases import FOREIGN, written

from antiphon.errors import Invalid, Unsupported
from antiphon.formats.msccl.code import codes_of
from antiphon.formats.msccl.read import read_msccl
from antiphon.lower.machine.judge import judge

NAME = "msccl"
PER_SEED = 20
MOST_STEPS = 90
STEP = re.compile(rb"      <step [^>]*/>\n")
NUMBERS = (b"srcoff", b"dstoff", b"cnt", b"depid", b"deps", b"hasdep", b"s")
TYPES = (b"s", b"r", b"rcs", b"rrs", b"rrc", b"rrcs", b"cpy", b"re", b"nop")


def ours(data: bytes, seed: int) -> str | None:
    """What is wrong, by our own account."""
    try:
        algorithm = read_msccl(data)
        for code in codes_of(algorithm):
            fault = judge(code, seed=seed)
            if fault is not None:
                return str(fault)
    except (Invalid, Unsupported) as error:
        return str(error)
    return None


def base(dice: random.Random) -> bytes:
    """A right file that is small enough."""
    while True:
        data = dice.choice(list(FOREIGN.values()))() if dice.random() < 0.4 else written(dice)
        if data is not None and data.count(b"<step") <= MOST_STEPS:
            return data


def changed(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """One place of it is another, and what was done."""
    kind = dice.choice(("number", "number", "number", "letter", "type", "steps", "steps", "tb", "swap", "head", "wait"))
    steps = list(STEP.finditer(data))
    one = dice.choice(steps)
    text = one.group()
    if kind == "number":
        key = dice.choice(NUMBERS)
        value = int(re.search(rb" " + key + rb'="(-?\d+)"', text)[1])  # type: ignore[index]
        new = dice.choice((value + 1, value - 1, value + dice.randint(2, 9), dice.randint(-2, 70), -1, 0))
        return _put(data, one, _set(text, key, b"%d" % new)), f"{key.decode()}={new}"
    if kind == "letter":
        key = dice.choice((b"srcbuf", b"dstbuf"))
        return _put(data, one, _set(text, key, dice.choice((b"i", b"o", b"s")))), key.decode()
    if kind == "type":
        return _put(data, one, _set(text, b"type", dice.choice(TYPES))), "type"
    if kind == "wait":
        return _put(data, one, _set(_set(text, b"depid", b"-1"), b"deps", b"-1")), "no dependency"
    if kind == "steps":
        how = dice.choice(("removed", "doubled", "swapped"))
        if how == "removed":
            return _numbered(_put(data, one, b"")), how
        if how == "doubled":
            return _numbered(_put(data, one, text + text)), how
        other = dice.choice(steps)
        first, last = sorted((one, other), key=lambda match: match.start())
        if first is last:
            return data, "nothing"
        middle = data[first.end() : last.start()]
        return _numbered(
            data[: first.start()] + last.group() + middle + first.group() + data[last.end() :]
        ), how  # fmt: skip
    if kind == "swap":
        tags = list(re.finditer(rb'<tb id="(\d+)"', data))
        a, b = sorted(dice.sample(tags, 2), key=lambda m: m.start()) if len(tags) > 1 else (tags[0], tags[0])
        if a is b:
            return data, "nothing"
        return data[: a.start(1)] + b[1] + data[a.end(1) : b.start(1)] + a[1] + data[b.end(1) :], "tb ids swapped"
    if kind == "tb":
        tag = dice.choice(list(re.finditer(rb"<tb [^>]*>", data)))
        key = dice.choice((b"send", b"recv", b"chan"))
        value = dice.choice((-1, 0, 1, 2, 3))
        return data[: tag.start()] + _set(tag.group(), key, b"%d" % value) + data[
            tag.end() :
        ], f"{key.decode()}={value}"
    key, low, high = dice.choice(((b"nchunksperloop", 1, 12), (b"nchannels", 0, 5), (b"s_chunks", 0, 9),
                                  (b"i_chunks", 0, 12), (b"o_chunks", 0, 12), (b"inplace", 1, 1), (b"ngpus", 1, 6)))  # fmt: skip
    tag = dice.choice(list(re.finditer(rb"<(?:algo|gpu) [^>]*\b" + key + rb'="\d+"[^>]*>', data)))
    value = dice.randint(low, high)
    return data[: tag.start()] + _set(tag.group(), key, b"%d" % value) + data[tag.end() :], f"{key.decode()}={value}"


def _set(tag: bytes, key: bytes, value: bytes) -> bytes:
    return re.sub(rb"\b" + key + rb'="[^"]*"', key + b'="' + value + b'"', tag, count=1)


def _put(data: bytes, at: re.Match[bytes], text: bytes) -> bytes:
    return data[: at.start()] + text + data[at.end() :]


def _numbered(data: bytes) -> bytes:
    """Steps numbered as they follow."""
    out, number = [], 0
    for line in data.splitlines(keepends=True):
        if b"<tb " in line:
            number = 0
        if b"<step " in line:
            line = _set(line, b"s", b"%d" % number)
            number += 1
        out.append(line)
    return b"".join(out)


def one(seed: int, counts: Counter[str]) -> None:
    dice = random.Random(seed)
    right = base(dice)
    for _ in range(PER_SEED):
        data, what = right, []
        for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 3))):
            data, how = changed(data, dice)
            what.append(how)
        counts[CASES] += 1
        said, known = ours(data, seed), verdict(data, seed)
        counts["right" if known is None else "wrong"] += 1
        counts["changed and right"] += known is None and data != right
        if (said is None) != (known is None):
            raise Found(f"we say {said or 'right'}, the executor's facts {known or 'right'} ({what})",
                        {"right.xml": right, "case.xml": data})  # fmt: skip
        if said is not None and not re.search(
            r"\brank \d+|\bline \d+|nchunksperloop|scratch|root|gpu of each id", said
        ):
            raise Found(f"names no place: {said} ({what})", {"case.xml": data})


if __name__ == "__main__":
    main(NAME, one, 5000, __doc__)

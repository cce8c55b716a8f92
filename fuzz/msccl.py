"""Files of MSCCL XML, right ones and those changed in one to three places, against what the executor does with them.

Ours are written from schedules of many planners, others by hand (`tests/msccl_cases.py`). In a file attributes are
changed, steps removed, doubled and swapped, dependencies dropped, thread blocks swapped: what reads it and the machine
must find a fault just where an independent account of the executor (`_msccl_executor.py`) finds one, and name the rank.
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
LETTERS = (b"i", b"o", b"s")
HEADS = (
    (b"nchunksperloop", 1, 12), (b"nchannels", 0, 5), (b"s_chunks", 0, 9), (b"i_chunks", 0, 12), (b"o_chunks", 0, 12),
    (b"inplace", 1, 1), (b"ngpus", 1, 6), (b"send", -1, 3), (b"recv", -1, 3), (b"chan", -1, 3),
)  # fmt: skip
TYPES = (b"s", b"r", b"rcs", b"rrs", b"rrc", b"rrcs", b"cpy", b"re", b"nop")


def ours(data: bytes, seed: int) -> str | None:
    """What is wrong, by our own account."""
    try:
        faults = [judge(code, seed=seed) for code in codes_of(read_msccl(data))]
    except (Invalid, Unsupported) as error:
        return str(error)
    return next((str(fault) for fault in faults if fault is not None), None)


def base(dice: random.Random) -> bytes:
    """A right file that is small enough."""
    while True:
        data = dice.choice(list(FOREIGN.values())) if dice.random() < 0.4 else written(dice)
        if data is not None and data.count(b"<step") <= MOST_STEPS:
            return data


def _number(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    one, key = dice.choice(list(STEP.finditer(data))), dice.choice(NUMBERS)
    value = int(re.search(rb" " + key + rb'="(-?\d+)"', one.group())[1])  # type: ignore[index]
    new = dice.choice((value + 1, value - 1, value + dice.randint(2, 9), dice.randint(-2, 70), -1, 0))
    return _put(data, one, _set(one.group(), key, b"%d" % new)), f"{key.decode()}={new}"


def _word(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    one = dice.choice(list(STEP.finditer(data)))
    key, words = dice.choice(((b"srcbuf", LETTERS), (b"dstbuf", LETTERS), (b"type", TYPES), (b"type", TYPES)))
    return _put(data, one, _set(one.group(), key, dice.choice(words))), key.decode()


def _no_wait(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    one = dice.choice(list(STEP.finditer(data)))
    return _put(data, one, _set(_set(one.group(), b"depid", b"-1"), b"deps", b"-1")), "no dependency"


def _steps(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """One less, one twice, or two in each other's place; numbered anew."""
    first, last = sorted(dice.choices(list(STEP.finditer(data)), k=2), key=lambda match: match.start())
    how = dice.choice(("removed", "doubled", "swapped"))
    made = _put(data, first, b"" if how == "removed" else first.group() * 2)
    if how == "swapped" and first.start() < last.start():
        made = _put(_put(data, last, first.group()), first, last.group())
    return _numbered(made), how


def _swapped(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """The numbers of two thread blocks."""
    tags = list(re.finditer(rb'<tb id="\d+"', data))
    first, last = sorted(dice.choices(tags, k=2), key=lambda match: match.start())
    if first.start() == last.start():
        return data, "nothing"
    return _put(_put(data, last, first.group()), first, last.group()), "tb ids swapped"


def _head(data: bytes, dice: random.Random) -> tuple[bytes, str]:
    """An attribute of a thread block, a rank or the whole."""
    key, low, high = dice.choice(HEADS)
    tag = dice.choice(list(re.finditer(rb"<(?:algo|gpu|tb) [^>]*\b" + key + rb'="-?\d+"[^>]*>', data)))
    value = dice.randint(low, high)
    return _put(data, tag, _set(tag.group(), key, b"%d" % value)), f"{key.decode()}={value}"


CHANGES = (_number, _number, _number, _word, _word, _steps, _steps, _swapped, _head, _head, _no_wait)


def _set(tag: bytes, key: bytes, value: bytes) -> bytes:
    return re.sub(rb"\b" + key + rb'="[^"]*"', key + b'="' + value + b'"', tag, count=1)


def _put(data: bytes, at: re.Match[bytes], text: bytes) -> bytes:
    return data[: at.start()] + text + data[at.end() :]


def _numbered(data: bytes) -> bytes:
    """Steps numbered as they follow."""
    out, number = [], 0
    for line in data.splitlines(keepends=True):
        number = 0 if b"<tb " in line else number
        out.append(_set(line, b"s", b"%d" % number) if b"<step " in line else line)
        number += b"<step " in line
    return b"".join(out)


def one(seed: int, counts: Counter[str]) -> None:
    dice = random.Random(seed)
    right = base(dice)
    for _ in range(PER_SEED):
        data, what = right, []
        for _ in range(dice.choice((0, 1, 1, 1, 1, 2, 3))):
            data, how = dice.choice(CHANGES)(data, dice)
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

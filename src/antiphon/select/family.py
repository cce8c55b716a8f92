"""Tune for several machines of a family, which differ in one option.

A spec such as "cluster:box=hgx-h100,boxes=4" names one machine; `vary` names one of its options with values,
"boxes=2,4" or "boxes=2:8". Each value makes a spec, which is tuned as by `tune`, with all other arguments the same.
A value that makes no machine is an error at once. One that cannot be tuned for is reported with the reason, and the
others go on. The result, `Tunings`, has a `Tuning` per value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote as escaped

from antiphon.core.collective import Collective
from antiphon.errors import AntiphonError, Invalid, quote
from antiphon.options import parse_options
from antiphon.select.ledger import Progress
from antiphon.select.parse_request import is_file, machine_of
from antiphon.select.sweep import FACTORS, Value, values_of
from antiphon.select.tuner import tune
from antiphon.select.tuning import Tuning

EXAMPLE = "nodes=1,2,4,8 or ranks=4:8"


@dataclass(frozen=True, eq=False)
class Tunings:
    """A tuning for every value of one option of the machine."""

    topology: str  # spec of the family
    varied: str  # name of the option
    tunings: Mapping[Value, Tuning]  # by value of the option
    refused: Mapping[Value, str]  # value -> why there is no tuning
    complete: bool = True  # False: interrupted; the last tuning may lack candidates, and values may be missing

    def __repr__(self) -> str:
        return f"Tunings({self.topology}, {self.varied}={','.join(map(str, self.tunings))}: {[*self.tunings.values()]})"

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON: per value that of a single tuning, or why it was refused. Keys are stable."""
        tunings = [{"value": value, **tuning.as_json()} for value, tuning in self.tunings.items()]
        refused = [{"value": value, "refused": why} for value, why in self.refused.items()]
        return {
            "topology": self.topology,
            "varied": self.varied,
            "complete": self.complete,
            "tunings": [*tunings, *refused],
        }

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write a file for every value with a plan (nodes=4.json), as `Tuning.save` does; return the files.

        The directory is created if necessary.
        """
        directory = Path(folder)
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise Invalid(f"{directory}: is not a directory and cannot be created ({error.strerror})") from None
        files = []
        for value, tuning in self.tunings.items():
            if tuning.plans:
                files.append(directory / f"{escaped(f'{self.varied}={value}', safe='=()+,')}.json")
                tuning.save(files[-1])
        return files


def tune_family(
    spec: str | Collective, topology: str, *, vary: Mapping[str, Any] | str, progress: Progress | None = None,
    **options: Any,
) -> Tunings:  # fmt: skip
    """Tune for the machine that the spec names, with one of its options replaced by each of the values.

    `vary`: the option and its values, {"nodes": [1, 2, 4]} or "nodes=1,2,4". `options`: those of `tune`. All machines
    are made first, so that a wrong value is an error at once. A value for which the request is invalid (a root that a
    small machine lacks) is refused, and the others go on. Ctrl-C returns the result so far. `progress` receives the
    number of candidates done on all machines, their total, and the value with what is done now.
    """
    key, values = parse_vary(vary)
    machines = {}
    for value in values:
        try:
            machines[value] = machine_of(replace_option(topology, key, value))
        except AntiphonError as error:
            raise type(error)(f"vary {key}={value}: {error}") from None
    tunings: dict[Value, Tuning] = {}
    refused: dict[Value, AntiphonError] = {}
    counter = _Counter(len(machines), progress)
    complete = True
    try:
        for value, machine in machines.items():
            try:
                report = counter.start(f"{key}={value}") if progress is not None else None
                tunings[value] = tune(spec, machine, progress=report, **options)
            except AntiphonError as error:
                refused[value] = error
            complete = all(tuning.complete for tuning in tunings.values())
            if not complete:
                break
    except KeyboardInterrupt:
        complete = False
    if refused and not tunings:
        raise next(iter(refused.values()))
    return Tunings(topology, key, tunings, {value: str(error) for value, error in refused.items()}, complete)


def parse_vary(vary: Mapping[str, Any] | str) -> tuple[str, tuple[Value, ...]]:
    """Return the option of --vary and its values."""
    options: Any = vary
    if isinstance(vary, str):
        options = parse_options([vary], "vary", f"one option of the machine with its values, such as {EXAMPLE}")
    if not isinstance(options, Mapping) or len(options) != 1:
        raise Invalid(f"vary: expected one option of the machine with its values, such as {EXAMPLE}; got {quote(vary)}")
    ((key, values),) = options.items()
    items = values.split(",") if isinstance(values, str) else values
    # the text "factors": elsewhere, the divisors of the number of ranks
    if FACTORS in (items if isinstance(items, list | tuple) else ()):
        raise Invalid(f"vary: {FACTORS} depend on the number of ranks, which varies here; write for example {EXAMPLE}")
    return key, values_of(values, f"vary {key}", ranks=0)


def replace_option(spec: str, key: str, value: Value) -> str:
    """Return the spec of a machine with this option, in place of the value it had."""
    if not isinstance(spec, str):
        raise Invalid(
            f"vary: expected the name of a family of machines, such as dgx2 or ring:ranks=8; got {quote(spec)}"
        )
    name, _, tail = spec.partition(":")
    if is_file(name):
        raise Invalid(f"vary: {spec} is a file, which has no options to vary; name a family, such as ring:ranks=8")
    options = tail.split(",") if tail else []
    position = next((i for i, text in enumerate(options) if re.match(rf"{re.escape(key)}\s*=", text)), len(options))
    options[position : position + 1] = [f"{key}={value}"]
    return f"{name}:{','.join(options)}"


class _Counter:
    """Progress over all tunings. Each later one is assumed to have as many candidates as the current one."""

    def __init__(self, tunings: int, progress: Progress | None) -> None:
        self.remaining, self.progress = tunings, progress
        self.done_before = self.candidates = 0  # candidates of the earlier tunings, and of the current one

    def start(self, name: str) -> Progress:
        """Return the progress callback for the next machine."""
        self.done_before += self.candidates
        self.candidates = 0
        self.remaining -= 1

        def report(done: int, total: int, text: str) -> None:
            self.candidates = total
            if self.progress is not None:
                self.progress(
                    self.done_before + done, self.done_before + total * (1 + self.remaining), f"{name}: {text}"
                )

        return report

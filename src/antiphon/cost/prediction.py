"""Types of cost models: a `Predictor` returns a `Prediction` for a message size. `cost.prepare` makes predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

Hop = tuple[int, int, int]  # (step, src, dst)


@dataclass(frozen=True)
class Prediction:
    """The result of a model: seconds, the terms that sum to them, and the bottleneck.

    Plans, reports and JSON output are made from it.
    """

    seconds: float
    terms: Mapping[str, float]  # name -> seconds; they sum to `seconds`
    bottleneck: str  # a link, limit or rank, as users call it
    critical_path: Sequence[Hop] = field(default=())  # messages, in the order of time
    note: str = ""  # what users must know about the figures, for instance that they are only bounds
    rests_on: str = ""  # the measurements that the model's own figures are calibrated by, briefly


Predictor = Callable[[int], Prediction]  # nbytes -> prediction


@runtime_checkable
class Simulator(Protocol):
    """A predictor that can compare its time with another at less cost than it predicts it."""

    @property
    def is_large(self) -> bool:
        """Return whether a prediction takes so long that `takes_less` should be asked first."""

    def takes_less(self, nbytes: int, seconds: float) -> bool:
        """Return whether the predicted time at a size is less than `seconds`."""


class LazyPath(Sequence[Hop]):
    """A critical path that is computed only when it is read, as most callers need just the time."""

    def __init__(self, find: Callable[[], Sequence[Hop]]) -> None:
        self._find = find

    @cached_property
    def hops(self) -> tuple[Hop, ...]:
        return tuple(self._find())

    def __len__(self) -> int:
        return len(self.hops)

    def __getitem__(self, index: Any) -> Any:
        return self.hops[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self.hops == tuple(other)

    def __hash__(self) -> int:
        return hash(self.hops)

    def __repr__(self) -> str:
        return repr(self.hops)

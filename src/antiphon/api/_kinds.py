"""Types that public functions accept for a machine, a collective, a plan, a profile and sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from antiphon.core.collective import Collective
    from antiphon.core.plan import Plan
    from antiphon.core.topology import Topology
    from antiphon.cost import Profile
    from antiphon.runtimes.measure.choose import MeasuredTuning
    from antiphon.select import Frontier, Tuning

    Path: TypeAlias = str | os.PathLike[str]
    MachineLike: TypeAlias = Topology | Path
    CollectiveLike: TypeAlias = Collective | Path
    PlanLike: TypeAlias = Plan | Tuning | MeasuredTuning | Frontier | Mapping[str, Plan] | Path
    ProfileLike: TypeAlias = Profile | Path | None

Size = int | str
Sizes = Size | Sequence[Size]
Seconds = float | str
Row = dict[str, Any]
RuntimeName = str  # also a runtime of an installed package

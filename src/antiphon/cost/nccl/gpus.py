"""Find the generation of GPUs of a machine by its name and links; library.py asks for its figures.

Machines of the catalogue are recognised by name (with changes such as " only 0,1,4" after it), probed machines by the
GPU model that the tool reported. A name alone is not enough: the links within the nodes must be those of the
catalogue's machine. Example: "hgx-h100 only 0,1,2,3" has the figures of h100; "8 x NVIDIA H200" those of h100, with a
remark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from antiphon.core.topology import Topology
from antiphon.cost.nccl.calls import CallFigures
from antiphon.cost.nccl.layout import NcclLayout, layout_of
from antiphon.errors import AntiphonError
from antiphon.topologies.degraded import DEGRADED
from antiphon.topologies.spec import machine_of

# Changes to a machine stand behind its name (core/reshape); a long list of ranks is cut off by "...".
_CHANGES = rf"({DEGRADED}| only [0-9]+(,[0-9]+)*(,?[0-9]*\.\.\.)?)*"
_CHANGED = re.compile(_CHANGES)
# As probed: (boxes x) GPUs per box x model, perhaps the fabric that joins the boxes: "2 x 8 x NVIDIA H200 on ib"
_PROBED = re.compile(rf"[0-9]+ x ([0-9]+ x )?(?P<model>[^,]+?){_CHANGES}( on .+?)?{_CHANGES}")
# As nvidia-smi and rocm-smi name the boards of the catalogue's boxes (VF: in virtual machines); or the generation
# alone, as NCCL's file has it
_MODELS = (
    (r"(Tesla )?V100(-SXM[23])?(-[0-9]+GB)?(-LS)?", "v100"), (r"(NVIDIA )?A100(-SXM4?-[0-9]+GB)?", "a100"),
    (r"(NVIDIA )?H[12]00( 80GB HBM3)?", "h100"), (r"(NVIDIA )?B200", "b200"),
    (r"(AMD )?(Instinct )?MI3(00|25)X( OAM| VF)?", "mi300x"), (r"(AMD )?(Instinct )?MI35[05]X( OAM| VF)?", "mi350x"),
)  # fmt: skip
EC2 = "ec2:instance="  # the names of Amazon's machines begin with it


class DetectedGpu(NamedTuple):
    """Figures of a machine's GPUs, and a remark if they are not known to be its own, else ""."""

    figures: CallFigures
    remark: str


def generation_of(machine: Topology, layout: NcclLayout, catalogue: Mapping[str, CallFigures]) -> DetectedGpu | None:
    """Return the GPUs of a machine; None if unknown."""
    calls = gpu_of(machine.name, catalogue)
    if calls is not None:
        box, changes = _catalogue_box(machine.name), machine.name.removeprefix(_catalogue_spec(machine.name))
        if not _matches_box(layout, box, slowed=DEGRADED in changes):
            return None
        name = box_of(machine.name)
        is_own = name in calls.measured or not calls.calibrated_by
        return DetectedGpu(calls, "" if is_own else f"GPUs of {name} taken for {calls.name}")
    model = _PROBED.fullmatch(machine.name)
    generation = model and generation_named(model["model"], catalogue)
    if not model or not generation or generation not in catalogue:
        return None
    slowed = DEGRADED in machine.name
    fits = any(_matches_box(layout, box, slowed=slowed) for box in catalogue[generation].boxes)
    remark = f"GPUs taken for {generation} by their name, {model['model']}"
    return DetectedGpu(catalogue[generation], remark) if fits else None


def generation_named(model: str, catalogue: Mapping[str, CallFigures]) -> str | None:
    """Return the generation of GPUs with this model name, or of the catalogue's machine of this name."""
    if generation := next((name for pattern, name in _MODELS if re.fullmatch(pattern, model)), None):
        return generation
    calls = gpu_of(model, catalogue)
    return calls.name if calls is not None else None


def gpu_of(name: str, catalogue: Mapping[str, CallFigures]) -> CallFigures | None:
    """Return the generation of GPUs of a machine of the catalogue, by its name; None if unknown."""
    box = box_of(name)
    return next((calls for calls in catalogue.values() if box in calls.boxes), None) if box else None


def box_of(name: str) -> str:
    """Return `_catalogue_box`, but for Amazon's machines the name of the instance alone."""
    return _catalogue_box(name).removeprefix(EC2)


def _catalogue_spec(name: str) -> str:
    """Return the catalogue's part of a name, without the changes after it."""
    return name.split(" ", 1)[0]


def _catalogue_box(name: str) -> str:
    """Return the machine of the catalogue that a name means, or that its boxes are; "" if none.

    `cluster:box=hgx-h100:sharp=false,boxes=2` has boxes hgx-h100. A name with more than a catalogue's name and changes
    is not in the catalogue.
    """
    spec = _catalogue_spec(name)
    if not _CHANGED.fullmatch(name.removeprefix(spec)):
        return ""
    kind, _, arguments = spec.partition(":")
    options = dict(option.partition("=")[::2] for option in arguments.split(","))
    if kind == "cluster":
        return options.get("box", "").partition(":")[0]
    return EC2 + options.get("instance", "") if kind == "ec2" else kind


def _matches_box(layout: NcclLayout, box: str, *, slowed: bool) -> bool:
    """Return whether nodes are no larger than a box, and have its links within; slower ones are allowed if `slowed`.

    Of a layout, `local` is the ranks of a node; `pairs`, in all nodes, the ordered pairs of ranks with a direct link;
    `all_meet`: any two ranks of a node have a link or a switch; `inner`: kind and bandwidth of the links within nodes.
    """
    full_box = _layout_within(box)
    if full_box is None or layout.local > full_box.local:
        return False
    is_complete = (layout.local, layout.pairs) == (full_box.local, full_box.pairs * layout.nodes)
    if not layout.all_meet:
        if not is_complete and layout.nodes > 1:
            return False  # several meshes with failed links may have no ring
        if not is_complete and layout.local == full_box.local and not slowed:
            return False  # a whole box without some of its links, though its name states no change
        if is_complete and not slowed and layout.wire != full_box.wire:
            return False  # the same pairs, but other numbers of links between them
    fastest = dict[str, Fraction]()
    for kind, bandwidth in full_box.inner:
        fastest[kind] = max(bandwidth, fastest.get(kind, bandwidth))
    if slowed:
        return all(bandwidth <= fastest.get(kind, 0) for kind, bandwidth in layout.inner)
    return layout.inner <= full_box.inner


def kinds_within(calls: CallFigures) -> set[str]:
    """Return the kinds of links within the nodes that these figures describe."""
    layouts = [within_box for box in calls.boxes if (within_box := _layout_within(box)) is not None]
    return {kind for layout in layouts for kind, _ in layout.inner}


@cache
def _layout_within(box: str) -> NcclLayout | None:
    """Return a machine of the catalogue as NCCL's model sees it; None if the name alone makes no such machine."""
    try:
        return layout_of(machine_of(box))
    except AntiphonError:
        return None

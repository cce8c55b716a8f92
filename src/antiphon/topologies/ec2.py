"""Instances of Amazon EC2 joined by the Elastic Fabric Adapter (EFA)."""

from __future__ import annotations

from fractions import Fraction

from antiphon.core.topology import Topology
from antiphon.topologies.joined import Cards, connected, one_switch
from antiphon.topologies.options import one_of, whole
from antiphon.topologies.spec import machine_of

# The box, its EFA cards and Gbit/s each: Amazon EC2 User Guide, "Network specifications" of accelerated computing
# instances (p4d.24xlarge, p5.48xlarge, p5en.48xlarge, p6-b200.48xlarge, trn2.48xlarge).
INSTANCES = {
    "p4d": ("dgx-a100", 4, 100), "p5": ("hgx-h100", 32, 100), "p5en": ("hgx-h200", 16, 200),
    "p6-b200": ("hgx-b200", 8, 400), "trn2": ("trn2", 16, 200),
}  # fmt: skip


def ec2(*, instance: str = "p5", instances: int = 2) -> Topology:
    """`instances` EC2 instances on EFA: instance=p4d (8 A100), p5 (8 H100), p5en (8 H200), p6-b200 (8 B200) or trn2 (16
    Trainium2).

    The network between them stands as one switch, as in a placement group: whatever its cards can send arrives
    (assumed). It neither multicasts nor reduces. Cards are spread evenly over accelerators; latency as of InfiniBand
    (assumed).
    """
    box, cards, gigabits = INSTANCES[one_of(instance, "instance", tuple(INSTANCES))]
    whole(instances, "instances", 2, 100_000)
    machine = machine_of(box, "+")
    found = Cards(cards, Fraction(gigabits * 10**9, 8), tuple(range(machine.ranks)), "efa")
    name = f"ec2:instance={instance},instances={instances}"
    return connected(name, machine, instances, found, one_switch(instances, found.rails, "efa"))

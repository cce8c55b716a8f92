"""The cost model `loggp`: LogGP with contention, a discrete-event simulation of messages, ports and NICs.

Liu, Rhee, Wilkins and Dinda, "Parameterized Algorithms and Parameter Selection for Fast GPU-GPU Collective
Communication", sections III and IV. docs/models/loggp.md specifies the simulation. This file is the entry: it reads the
options (options.py), prepares the messages (work.py) and returns a `Simulation` (run.py), a function from nbytes to a
prediction. `simulate_graph` does the same for a graph of messages read from a file.

LogGP's parameters: L latency, o_s and o_r overheads of sender and receiver per message, g least time between two
messages of a rank, G seconds per byte. Example: one message of b bytes takes o_s + G (b - 1) + L + o_r.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from antiphon.core.joints import refuse_joints
from antiphon.core.messages import MessageGraph
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost.loggp.options import options_of
from antiphon.cost.pieces import limit_pieces
from antiphon.cost.prediction import Predictor
from antiphon.cost.profile import Profile, as_profile
from antiphon.errors import Invalid, quote
from antiphon.units import format_bandwidth


def loggp(  # noqa: PLR0913 (every option of the model)
    schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None, fidelity: str = "message",
    order: str = "rounds", sent: str | None = None, contention: str = "on", device_radix: int | str | None = None,
    node_radix: int | str | None = None, local: str = "off", cpu: str | None = None, eager: int | str | None = None,
    meaning: str = "ports",
) -> Predictor:  # fmt: skip
    """Prepare the simulation of a schedule with LogGP's costs and limited ports and network cards.

    Every message pays o_s, waits for a port of its rank (at least g after the previous message), crosses the NIC of its
    host if it leaves the host, takes G for every byte but the first, then L, a port of the receiver, o_r, and gamma for
    every byte that is combined.

    Parameters
    ----------
    fidelity
        "message": every message is sent as a whole. "packet": between hosts messages are divided into packets that take
        turns on NICs.
    order
        What a message waits for (docs/program.md). "rounds": everything that its rank sent and received in earlier
        steps, as in programs of blocking calls. "streams": the same, separately on each level of the profile, and the
        data. "data": only the data that it reads.
    sent
        When a rank may go on after a send of an earlier step: when the message is "received", or has "left".
    contention
        "off" ignores ports and NICs.
    device_radix, node_radix
        Number of ports of a rank, and of NICs of a host, instead of the profile's; "none" for no limit.
    local
        "on" adds the time of the local work that the schedule declares (PICCL's permutations), at the end, at the
        profile's memory bandwidth. For runtimes that perform it; ours do not.
    cpu
        "overlap": overheads of several messages overlap. "shared": a rank has one processor, which is busy for o_s with
        each message that it sends, and for o_r and the transfer of all bytes with each message that it receives.
    eager
        With cpu=shared: messages up to this size in bytes have left once o_s is over; longer ones have left when the
        receiver begins to take them.
    meaning
        "loggops" stands for cpu=shared, sent=left, device_radix=1 and node_radix=none.

    Notes
    -----
    If the profile has no "loggp" parameters, they are derived from the topology: L and G from each route, no overheads,
    one port. As that ignores that ranks share links, the prediction is then at least the time of the busiest link.

    Prepared in O(rows); a size costs O(messages log(messages in progress)), or as much for packets.
    """
    refuse_joints(schedule, "model loggp", "models alpha-beta, critical-path and flows price it")
    loaded_profile = as_profile(profile)
    options = options_of(
        loaded_profile, fidelity=fidelity, contention=contention, device_radix=device_radix, node_radix=node_radix,
        cpu=cpu, sent=sent, eager=eager, meaning=meaning,
    )  # fmt: skip
    # Imported here, as these load Numba (compiled.py).
    from antiphon.cost.loggp.run import Simulation
    from antiphon.cost.loggp.work import work_of

    # `expand` makes every piece a chunk of its own; `note` says if some are merged, as there are too many to simulate
    limited_schedule, note = limit_pieces(schedule)
    profiled_topology = loaded_profile.on(topology)
    work = work_of(expand(limited_schedule), profiled_topology, loaded_profile.loggp, order, options.sent)
    return Simulation(
        profiled_topology, loaded_profile, work, options, note, _local_work(schedule, loaded_profile, local)
    )


def _local_work(schedule: Schedule, profile: Profile, local: str) -> tuple[float, str]:
    """Return the seconds per byte of nbytes of each rank's local work at the end, and its name."""
    if local not in ("on", "off"):
        raise Invalid(f"option local of model loggp: expected on or off, got {quote(local)}")
    if local == "off" or not schedule.local:
        return 0.0, ""
    kinds = ", ".join(work.kind for work in schedule.local)
    share = sum((work.share for work in schedule.local), start=Fraction(0))
    name = f"local work ({kinds}) in the memory of every rank, at {format_bandwidth(profile.memory_bandwidth)}"
    return float(share / profile.memory_bandwidth), name


def simulate_graph(  # noqa: PLR0913
    graph: MessageGraph, topology: Topology, *, profile: Profile | str | Path, fidelity: str = "message",
    contention: str = "on", device_radix: int | str | None = None, node_radix: int | str | None = None,
    cpu: str | None = None, sent: str | None = None, eager: int | str | None = None, meaning: str = "ports",
) -> Predictor:  # fmt: skip
    """Prepare a graph of messages read from a file; options as for `loggp`. Its sizes are in bytes: call the predictor
    with nbytes = 1.
    """
    loaded_profile = as_profile(profile)
    if loaded_profile.loggp is None:
        raise Invalid(
            f"profile {quote(loaded_profile.name)}: has no LogGP figures; a graph of messages is simulated by these"
        )
    if graph.ranks > topology.ranks:
        raise Invalid(f"messages among {graph.ranks} ranks, but topology {topology.name} has {topology.ranks}")
    options = options_of(
        loaded_profile, fidelity=fidelity, contention=contention, device_radix=device_radix, node_radix=node_radix,
        cpu=cpu, sent=sent, eager=eager, meaning=meaning,
    )  # fmt: skip
    from antiphon.cost.loggp.run import Simulation
    from antiphon.cost.loggp.work import work_of_messages

    return Simulation(
        topology, loaded_profile, work_of_messages(graph, topology, loaded_profile.loggp, options.sent), options
    )

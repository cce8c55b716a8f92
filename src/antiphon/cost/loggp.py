"""LogGP with contention: a discrete-event simulation of messages, their overheads, gaps, ports and NICs.

Liu, Rhee, Wilkins and Dinda, "Parameterized Algorithms and Parameter Selection for Fast GPU-GPU Collective
Communication", sections III and IV. docs/models/loggp.md tells exactly what is simulated.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

from antiphon.core.messages import RECEIVED, MessageGraph
from antiphon.core.schedule import Schedule
from antiphon.core.topology import Topology
from antiphon.core.transform import expand
from antiphon.cost._loggp_figures import Level, LogGP
from antiphon.cost._pieces import within_pieces
from antiphon.cost._prediction import Predictor
from antiphon.cost._profile import Profile, as_profile
from antiphon.errors import Invalid, quote
from antiphon.units import format_bandwidth

FIDELITIES = ("message", "packet")


def loggp(  # noqa: PLR0913 (every option of the model)
    schedule: Schedule, topology: Topology, *, profile: Profile | str | Path | None = None, fidelity: str = "message",
    order: str = "rounds", sent: str = RECEIVED, contention: str = "on", device_radix: int | str | None = None,
    node_radix: int | str | None = None, local: str = "off",
) -> Predictor:  # fmt: skip
    """Every message pays o_s, waits for a port of its rank (and leaves g between two), crosses its node's NIC where
    it leaves the node, takes G for every byte but the first, L, a port of the receiver, o_r, and gamma for every byte
    that is combined.

    - `fidelity`: "packet": between nodes messages are cut into packets that take turns on NICs; "message": every
      message is one piece there.
    - `order`: what a message waits for (docs/messages.md): "rounds": all that its rank sent and received in the rounds
      before, as in programs of blocking calls; "streams": the same, on each level of the hierarchy for itself, and the
      data; "data": just the versions that it reads.
    - `sent`: what a rank sent in a round before counts when it is "received", or when its last byte has "left".
    - `contention`: "off" leaves out ports and NICs.
    - `device_radix`, `node_radix`: in place of the profile's; "none" for no limit.
    - `local`: "on": a runtime that does what the schedule declares as local work (PICCL's permutations), which takes
      its bytes over the profile's memory bandwidth at the end; ours do not.

    Without figures in the profile ("loggp") they come from the topology: L and G from each route, no overheads, one
    port; and as that knows nothing of links that several ranks share, no time is below what the busiest link takes.

    Prepared in O(rows); a size costs O(messages log(messages under way)), for packets O(packets ...).
    """
    given = as_profile(profile)
    limits = _limits(given, fidelity, contention, device_radix, node_radix)
    from antiphon.cost._loggp_run import Simulation
    from antiphon.cost._loggp_work import work_of

    fewer, note = within_pieces(schedule)
    seen = given.on(topology)
    work = work_of(expand(fewer), seen, given.loggp, order, sent)
    return Simulation(seen, given, work, limits, fidelity == "packet", note, _local(schedule, given, local))


def _local(schedule: Schedule, given: Profile, local: str) -> tuple[float, str]:
    """Seconds per byte of nbytes that every rank works on its own at the end, and what that is called."""
    if local not in ("on", "off"):
        raise Invalid(f"option local of model loggp: expected on or off, got {quote(local)}")
    if local == "off" or not schedule.local:
        return 0.0, ""
    kinds = ", ".join(work.kind for work in schedule.local)
    share = sum((work.share for work in schedule.local), start=Fraction(0))
    name = f"local work ({kinds}) in the memory of every rank, at {format_bandwidth(given.memory_bandwidth)}"
    return float(share / given.memory_bandwidth), name


def simulate_graph(
    graph: MessageGraph, topology: Topology, *, profile: Profile | str | Path, fidelity: str = "message",
    contention: str = "on", device_radix: int | str | None = None, node_radix: int | str | None = None,
) -> Predictor:  # fmt: skip
    """The same of a graph of messages that a file tells. Its sizes are in bytes: ask what is returned for 1 byte."""
    given = as_profile(profile)
    if given.loggp is None:
        raise Invalid(f"profile {quote(given.name)}: has no LogGP figures; a graph of messages is simulated by these")
    if graph.ranks > topology.ranks:
        raise Invalid(f"messages among {graph.ranks} ranks, but topology {topology.name} has {topology.ranks}")
    limits = _limits(given, fidelity, contention, device_radix, node_radix)
    from antiphon.cost._loggp_run import Simulation
    from antiphon.cost._loggp_work import work_of_messages

    return Simulation(topology, given, work_of_messages(graph, topology, given.loggp), limits, fidelity == "packet")


def _limits(
    given: Profile, fidelity: str, contention: str, device_radix: int | str | None, node_radix: int | str | None
) -> LogGP:
    """What the options leave of the profile's limits."""
    if fidelity not in FIDELITIES:
        raise Invalid(f"option fidelity of model loggp: expected message or packet, got {quote(fidelity)}")
    if contention not in ("on", "off"):
        raise Invalid(f"option contention of model loggp: expected on or off, got {quote(contention)}")
    told = {"device_radix": device_radix, "node_radix": node_radix}
    changed = {key: None if value == "none" else value for key, value in told.items() if value is not None}
    limits = replace(given.loggp or LogGP((Level(),)), **changed)  # type: ignore[arg-type]
    return replace(limits, device_radix=None, node_radix=None) if contention == "off" else limits

"""GenModel in closed form, for plans that have a name: Tables 1 and 2 of the GenModel and GenTree paper, corrected.

Input: a number of servers (ranks), nbytes, and the figures of links (`Tier`) and servers (`Server`). Output: seconds by
term (`Terms`). Every formula is derived from the steps of its plan, on one switch with full bandwidth to every server;
if the paper prints something else, the docstring notes it. `cost.genmodel` prices any schedule by the same rules; tests
compare the two. With `epsilon` and `delta` 0 these are the (alpha, beta, gamma) model of Table 1.

A step takes alpha, plus for the busiest server:

    beta + epsilon * max(w - w_t, 0)   per byte that it sends or receives (the greater), if w servers at once send to
                                       it, or to a receiver of what it sends
    gamma                              per byte that it adds; combining f values at once takes f - 1 additions
    delta                              per byte that it reads or writes in memory; f values: f + 1 accesses

Example: `ring(4, S, ...)`: 2 * 3 steps of S / 4 bytes, one sender each: 6 alpha + 1.5 S beta, and in the first 3 steps
0.75 S gamma and 3 * 0.75 S delta.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from antiphon.errors import Invalid, Unsupported, quote

HALF_COLLECTIVES = ("reducescatter", "allgather")  # the two halves of an allreduce


@dataclass(frozen=True)
class Server:
    """Seconds per byte that a server adds (gamma), and per byte that it reads or writes in memory (delta)."""

    gamma: float = 0.0
    delta: float = 0.0


@dataclass(frozen=True)
class Tier:
    """The links of one tier."""

    alpha: float  # seconds per step
    beta: float  # seconds per byte
    epsilon: float = 0.0  # additional seconds per byte for each sender beyond w_t
    w_t: int = 0  # senders that cost nothing

    def incast_cost(self, senders: int) -> float:
        """Return the additional seconds per byte with this many senders to one receiver."""
        return self.epsilon * max(senders - self.w_t, 0)


@dataclass(frozen=True)
class Terms:
    """Seconds by term."""

    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    delta: float = 0.0
    epsilon: float = 0.0

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, f.name) for f in fields(self))

    def __add__(self, other: Terms) -> Terms:
        return Terms(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> Terms:
        return Terms(*(getattr(self, f.name) * times for f in fields(self)))


def cps(n: int, nbytes: float, tier: Tier, server: Server, collective: str = "allreduce") -> Terms:
    """Price co-located parameter servers: every server collects, combines and distributes 1/n of the data. O(1).

    Table 2 prints max(N - w_t, 0) for the incast. But N - 1 servers send, and the paper's own times fit N - 1.
    """
    return hcps((n,), nbytes, tier, server, collective)


def hcps(fanins: Sequence[int], nbytes: float, tier: Tier, server: Server, collective: str = "allreduce") -> Terms:
    """Price hierarchical co-located parameter servers with these fan-ins, in the order of the steps. O(fan-ins).

    Table 2 is wrong in two terms: the product in the delta term runs over the wrong indices (visible from three levels
    on); the epsilon term names a fan-in f_-1 and lacks the factor 2.
    """
    if not fanins or min(fanins) < 1:
        raise Invalid(f"fan-ins {quote(fanins)}: expected whole numbers from 1 on, such as 8, 4")
    half, size = Terms(), float(nbytes)
    combining = Terms()
    for f in fanins:
        if f == 1:
            continue
        size /= f  # bytes that a server holds after this step of the reducescatter
        received = (f - 1) * size
        half += Terms(alpha=tier.alpha, beta=received * tier.beta, epsilon=received * tier.incast_cost(f - 1))
        combining += Terms(gamma=received * server.gamma, delta=(f + 1) * size * server.delta)
    return _both_halves(half, combining, collective)


def ring(n: int, nbytes: float, tier: Tier, server: Server, collective: str = "allreduce") -> Terms:
    """Price a ring in one direction: n - 1 steps each way, two values combined in each, one sender per receiver.
    O(1)."""
    return _pairwise_steps(n - 1, (n - 1) / _check_servers(n), nbytes, tier, server, collective)


def rhd(n: int, nbytes: float, tier: Tier, server: Server, collective: str = "allreduce") -> Terms:
    """Price recursive halving, then doubling. O(1).

    Let K be the greatest power of two up to n. If K < n, the servers beyond K first send their data to a neighbour and
    get the result at the end. That is one more step with all data each way, and K instead of N elsewhere, as in section
    2.1 of the paper; its Table 2 keeps N. The paper gives only the allreduce: Unsupported for its halves.
    """
    core = 1 << (_check_servers(n).bit_length() - 1)  # K
    steps = core.bit_length() - 1
    if core == n:
        return _pairwise_steps(steps, (n - 1) / n, nbytes, tier, server, collective)
    if collective != "allreduce":
        raise Unsupported(
            f"rhd: the {collective} of {n} servers has no closed form here; give a power of two, or use ring"
        )
    return _pairwise_steps(steps + 1, (core - 1) / core + 1, nbytes, tier, server, collective)


def reduce_broadcast(n: int, nbytes: float, tier: Tier, server: Server, collective: str = "allreduce") -> Terms:
    """Price one server that collects and combines all data, and sends all of it to everyone. O(1).

    Table 1 prints 2(N-1) S gamma, Table 2 correctly (N-1) S. Table 2 counts incast twice; in the broadcast every
    receiver has only one sender, and equation 8 counts it for the collecting step alone.
    """
    if collective != "allreduce":
        raise Unsupported(f"reduce_broadcast: an allreduce has this form, not {quote(collective)}; use cps")
    if _check_servers(n) == 1:
        return Terms()
    sent = (n - 1) * float(nbytes)
    return Terms(
        alpha=2 * tier.alpha,
        beta=2 * sent * tier.beta,
        gamma=sent * server.gamma,
        delta=(n + 1) * float(nbytes) * server.delta,
        epsilon=sent * tier.incast_cost(n - 1) + sent * tier.incast_cost(1),
    )


def _pairwise_steps(steps: int, share: float, nbytes: float, tier: Tier, server: Server, collective: str) -> Terms:
    """Price steps in which every server has one sender and combines two values. `share`: of nbytes, received in the
    steps of one half."""
    received = share * float(nbytes)
    half = Terms(alpha=steps * tier.alpha, beta=received * tier.beta, epsilon=received * tier.incast_cost(1))
    # to combine two values: two reads and a write (delta)
    return _both_halves(half, Terms(gamma=received * server.gamma, delta=3 * received * server.delta), collective)


def _both_halves(half: Terms, combining: Terms, collective: str) -> Terms:
    """Price an allreduce as a reducescatter and an allgather that moves as much and combines nothing."""
    return {"reducescatter": half + combining, "allgather": half, "allreduce": half * 2 + combining}[
        _check_collective(collective)
    ]


def _check_collective(collective: str) -> str:
    if collective not in ("allreduce", *HALF_COLLECTIVES):
        raise Unsupported(
            f"closed forms: of {quote(collective)} there is none; use allreduce, {' or '.join(HALF_COLLECTIVES)}"
        )
    return collective


def _check_servers(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise Invalid(f"closed forms: {quote(n)} servers; expected a whole number from 1 on")
    return n

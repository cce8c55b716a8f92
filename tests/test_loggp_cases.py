"""The LogGP simulation by hand: small whole figures, so that every moment can be told exactly.

Ranks 0 to 3 are on the first host, 4 to 7 on the second, and so on. Within a host L = 10, o_s = 5, o_r = 6, g = 8,
G = 1 and gamma = 2; between hosts L = 100, G = 10 and gamma = 3, the rest alike. A packet has 4 bytes unless told
otherwise.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from loggp_build import BEYOND, FIDELITIES, HOST, PER_HOST, held_to_account, plain, simulation
from loggp_plain import Message

from antiphon.cost import Level, LogGP

NODE = [rank // PER_HOST for rank in range(4 * PER_HOST)]
LIMITS = LogGP((HOST, BEYOND), 1, 1, "host", 4)


@dataclass(frozen=True)
class Case:
    """When every message is done; `packet` and `message` where the two differ."""

    messages: list[Message]
    done: list[int]
    packet: list[int]
    limits: LogGP


def case(*messages: Message, done: Any = None, message: Any = None, packet: Any = None, packet_size: int = 4,
         **limits: Any) -> Case:  # fmt: skip
    return Case(list(messages), message or done, packet or done, replace(LIMITS, packet=packet_size, **limits))


def m(src: int, dst: int, nbytes: int, *deps: int, combined: int = 0) -> Message:
    return Message(src, dst, nbytes, deps, combined)


# The far level with a greater gap, and the near one with none: a port's gap is its next message's own.
UNEVEN = (replace(HOST, g=(8.0,)), replace(BEYOND, g=(50.0,)))
# Overheads that are not hidden by anything: the gap holds a sender up.
LONG_GAP = (replace(HOST, g=(40.0,)), BEYOND)

CASES = {
    # ---- one message ----
    # o_s 5, nine bytes after the first 9, L 10, o_r 6
    "within a node": case(m(0, 1, 10), done=[30]),
    # 5 + 9 * 10 + 100 + 6, in packets of 4, 4 and 2 just as whole: they follow one another
    "between nodes": case(m(0, 4, 10), done=[201]),
    "between nodes, one packet": case(m(0, 4, 10), done=[201], packet_size=16),
    # 5 + 8 * 10 + 100 + 6: the last packet has a byte
    "a short last packet": case(m(0, 4, 9), done=[191]),
    # 5 + 7 * 10 + 100 + 6
    "full packets": case(m(0, 4, 8), done=[181]),
    "one byte": case(m(0, 1, 1), m(4, 8, 1), done=[21, 111]),
    # nothing to send takes as long as a byte
    "no bytes": case(m(0, 1, 0), m(4, 8, 0), done=[21, 111]),
    # ---- one sender ----
    # the port's last byte leaves at 5 + 9 = 14; the next first byte 8 later, at 22: 22 + 9 + 10 + 6
    "the gap of a port": case(m(0, 1, 10), m(0, 2, 10), done=[30, 47]),
    "two ports": case(m(0, 1, 10), m(0, 2, 10), done=[30, 30], device_radix=2),
    # ports are free at 14 and 16; the third takes the one that is free first, and begins at 14 + 8
    "three messages, two ports": case(m(0, 1, 10), m(0, 2, 12), m(0, 3, 1), done=[30, 32, 38], device_radix=2),
    "no limit": case(*[m(0, 1 + i % 3, 10) for i in range(6)], done=[30] * 6, device_radix=None),
    # first bytes at 5, 13, 21, 29: in the order in which they asked
    "a line of senders": case(m(0, 1, 1), m(0, 2, 1), m(0, 3, 1), m(0, 1, 1), done=[21, 29, 37, 45]),
    # who asks later is later: o_s is paid by all at once, and 0 to 3 asks when it has heard from 1, at 21 + 5
    # the port: 5..14 (to 1), 22..31 (to 2), then the third, first byte 39
    "a late sender": case(m(0, 1, 10), m(0, 2, 10), m(1, 0, 1), m(0, 3, 1, 2), done=[30, 47, 21, 55]),
    # the first waits until 14 + 8, as far as the port goes; between nodes 22 + 30 + 100 + 6
    "near, then far": case(m(0, 1, 10), m(0, 4, 4), done=[30, 158]),
    # last bytes leave at 14 (port A) and 16 (port B). The far one takes A at 14 and waits there for its gap of 50:
    # first byte 64, done 64 + 100 + 6. The last takes B at 16 and waits for its own 8: 24 + 10 + 6
    "gaps differ, two ports": case(
        m(0, 1, 10), m(0, 2, 12), m(0, 4, 1), m(0, 3, 1), done=[30, 32, 170, 40], levels=UNEVEN, device_radix=2),
    # ---- one receiver ----
    # packet: heads of 4 arrive at 5 + 3 + 10 = 18. The first holds the port until it is in, 24; the second waits 6,
    # then 8 for the gap, and is 14 late: 30 + 14. Message: first bytes arrive at 15; the second's begins at 24 + 8,
    # is in at 32 + 9, done 47
    "two senders, one port": case(m(1, 0, 10), m(2, 0, 10), message=[30, 47], packet=[30, 44]),
    # all of it is the head: both arrive at 24, the second is in 8 later
    "two senders, one port, one packet": case(
        m(1, 0, 10), m(2, 0, 10), message=[30, 47], packet=[30, 38], packet_size=4096),
    "two senders, two ports": case(m(1, 0, 10), m(2, 0, 10), done=[30, 30], device_radix=2),
    # packet: heads of all arrive at 24 (b), 26 (c), 34 (a). b in at 24; c 8 after that, at 32; a at 40.
    # message: first bytes arrive together, in the order of numbers: a 15..34, b 42..51, c 59..70
    "the line is by arrival": case(
        m(1, 0, 20), m(2, 0, 10), m(3, 0, 12), message=[40, 57, 76], packet=[46, 30, 38], packet_size=4096),
    # heads at 18: a holds the port until 34, b until it is in: 34 + 8 + (24 - 18) = 48, c then 48 + 8 + (26 - 18) = 64
    "a line of receivers": case(m(1, 0, 20), m(2, 0, 10), m(3, 0, 12), message=[40, 57, 76], packet=[40, 54, 70]),
    # two ports: a until 34 and b until 24; c takes b's at 24 with 8 more: late by 32 - 18 = 14, in at 40
    # message: a 15..34, b 15..24, c 32..43
    "a line of receivers, two ports": case(
        m(1, 0, 20), m(2, 0, 10), m(3, 0, 12), message=[40, 30, 49], packet=[40, 30, 46], device_radix=2),
    # sending and receiving have ports of their own
    "there and back": case(m(0, 1, 10), m(1, 0, 10), done=[30, 30]),
    # ---- a node's NIC ----
    # a packet of 4 is 40 on the NIC: a at 5 and 85, b at 45 and 125. Last bytes leave at 115 and 155, then 106
    # message: a 5..85, b 85..165; last bytes at 75 and 155
    "two take turns": case(m(0, 4, 8), m(1, 5, 8), message=[181, 261], packet=[221, 261]),
    # a 5, b 45, c 85, a 125, b 165, c 205; last bytes 30 after that, then 106
    "three take turns": case(m(0, 4, 8), m(1, 5, 8), m(2, 6, 8), message=[181, 261, 341], packet=[261, 301, 341]),
    # a 5, b 45 (all of it), a 85, a 125. message: a 5..125, b from 125
    "long and short": case(m(0, 4, 12), m(1, 5, 4), message=[221, 261], packet=[261, 181]),
    # b asks while a's first packet is served: its turn is before a's second. 5..45 a, b 45..55, a 55..95
    "a byte in between": case(m(0, 4, 8), m(1, 5, 1), message=[181, 191], packet=[191, 151]),
    # servers A and B: a A 5, b B 5; at 45 A takes c, then B takes a (before b); at 85 b and c
    # message: a and b 5..85, c 85..165
    "two servers": case(
        m(0, 4, 8), m(1, 5, 8), m(2, 6, 8), message=[181, 181, 261], packet=[181, 221, 221], node_radix=2),
    "no limit to NICs": case(m(0, 4, 8), m(1, 5, 8), m(2, 6, 8), done=[181] * 3, node_radix=None),
    # within a node no NIC is needed
    "a NIC is for others": case(m(0, 4, 8), m(1, 2, 8), done=[181, 28]),
    # one rank, one port: the second's first byte leaves 8 after the first's last, at 75 + 8 = 83; the NIC is free at 85
    "port and NIC": case(m(0, 4, 8), m(0, 5, 8), done=[181, 261]),
    # ---- the NIC of a receiver ----
    # both begin at 5 on NICs of their own; first bytes come at 105. a passes until 145, b is in at 145 + 30
    "two into one node": case(m(0, 8, 4), m(4, 9, 4), done=[141, 181]),
    # a 105..145, b 145..185, a 185..225, b 225..265: in 10 before. message: a 105..185, b 185..265
    "two into one node, in packets": case(m(0, 8, 8), m(4, 9, 8), message=[181, 261], packet=[221, 261]),
    "two into one node, two servers": case(m(0, 8, 8), m(4, 9, 8), done=[181, 181], node_radix=2),
    # one port there as well. packet: heads arrive at 135; a takes the port and is in at 175; b takes it then and
    # waits 8: 48 late, its packets come at 183 and 223, when the NIC is free (a's last until 185, b's first byte comes
    # at 153: in at 215, 8 more than it was late; the last first byte at 193, after 225: in at 255)
    # message: a in at 175; b's first byte at 183, NIC free at 185: in at 255
    "two into one rank": case(m(0, 8, 8), m(4, 8, 8), done=[181, 261]),
    # a and b take both servers from 105 to 145. c's first packet waits until 145 and is in at 175; its last byte, sent
    # at 45, comes at 145 and passes by the other server at once. c is in when all of it is: 175
    # message: c from 145 by either server, 40 for its last byte
    "a short packet overtakes": case(
        m(0, 12, 4), m(4, 13, 4), m(8, 14, 5), message=[141, 141, 191], packet=[141, 141, 181], node_radix=2),
    # ---- what waits for what ----
    "a chain": case(m(0, 1, 10), m(1, 2, 10, 0), m(2, 6, 4, 1), done=[30, 60, 201]),
    # the later of 30 and 201
    "a join": case(m(0, 1, 10), m(5, 1, 10), m(1, 2, 10, 0, 1), done=[30, 201, 231], device_radix=2),
    # done at 30 with the port's last byte out at 14: asks at 35, but the gap is over at 54: 54 + 9 + 10 + 6
    "a gap that holds up": case(m(0, 1, 10), m(1, 0, 10), m(0, 1, 10, 1), done=[30, 30, 79], levels=LONG_GAP),
    # numbers may be in any order
    "waits for a later number": case(m(1, 2, 10, 1), m(0, 1, 10), done=[60, 30]),
    # a rank's own work costs nothing
    "work within a rank": case(m(0, 1, 10), m(1, 1, 99, 0), m(1, 2, 10, 1), done=[30, 30, 60]),
    "work within a rank needs no port": case(m(0, 1, 10), m(0, 0, 10), m(1, 1, 10), done=[30, 0, 0]),
    # ---- combining ----
    # in at 24, then o_r: 30; gamma 2 a byte
    "combined": case(m(0, 1, 10, combined=10), done=[50]),
    "combined in part": case(m(0, 1, 10, combined=4), done=[38]),
    "combined from afar": case(m(0, 4, 10, combined=10), done=[231]),
    # both there at 30: one after the other
    "one after the other": case(m(1, 0, 10, combined=10), m(2, 0, 10, combined=10), done=[50, 70], device_radix=2),
    # what is only taken in is not held up
    "taken in meanwhile": case(m(1, 0, 10, combined=10), m(2, 0, 12), done=[50, 32], device_radix=2),
    "two ranks combine": case(m(1, 0, 10, combined=10), m(0, 1, 10, combined=10), done=[50, 50]),
    "nothing": case(done=[]),
}  # fmt: skip


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("name", CASES)
def test_by_hand(name: str, fidelity: str) -> None:
    one = CASES[name]
    found = simulation(one.messages, one.limits, fidelity).run(1)
    assert found.log.done.tolist() == (one.packet if fidelity == "packet" else one.done)
    held_to_account(found, one.messages, fidelity)


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize("name", CASES)
def test_the_plain_simulation_by_hand(name: str, fidelity: str) -> None:
    one = CASES[name]
    made = plain(one.messages, one.limits, fidelity, NODE)
    assert made.done == (one.packet if fidelity == "packet" else one.done)


def test_figures_by_size() -> None:
    """Linear between sizes, constant outside: at 6 bytes L is 20, at 1 byte 10, at 40 bytes 30."""
    level = Level("", sizes=(2, 10), L=(10, 30), o_s=5, o_r=6, G=(1, 2))
    given = LogGP((level,), None, None)
    messages = [m(0, 1, 1), m(0, 1, 6), m(0, 4, 40)]
    found = simulation(messages, given, "message").run(1)
    assert found.log.done.tolist() == [5 + 10 + 6, 5 + 5 * 1.5 + 20 + 6, 5 + 39 * 2 + 30 + 6]


def test_what_a_message_waited_for_is_told() -> None:
    """The second of "two take turns" waits for a NIC alone."""
    one = CASES["two take turns"]
    found = simulation(one.messages, one.limits, "message")
    log = found.run(1).log
    assert (log.nic[1], log.port[1], log.port_out[1]) == (80, 0, 0)
    assert found(1).terms == {
        "overhead": 11, "latency": 100, "bandwidth": 70, "ports": 0, "NICs": 80, "combining": 0}  # fmt: skip
    assert np.isclose(found(1).seconds, 261)

"""The figures of the GenModel and GenTree paper: its Tables 3, 4, 6 and 7, and what its text says of Figures 8 and 10.

Sizes are in floats of 4 bytes, times in seconds, one per size or number of servers. Table 5 is the profile
genmodel-table5.

Names are the paper's. Plans of a switch: "CPS" is a co-located parameter server, "ACPS" an asymmetric one; "6x2" is a
hierarchical one of groups of 6, then of 2; "RHD" is halving-doubling; "GenTree*" is GenTree without rearranged blocks.
Networks (topologies/gentree.py): SS24 is a single switch, SYM384 and ASY384 are symmetric and asymmetric trees, CDC384
joins two data centres; the number is that of servers.
"""

from __future__ import annotations

from collections.abc import Mapping

FLOAT = 4  # bytes
SIZES: Mapping[str, int] = {"1e7": 10**7, "3.2e7": 32 * 10**6, "1e8": 10**8}  # of Tables 6 and 7
Three = tuple[float, float, float]  # seconds by number of servers (Table 3) or by size (Table 7)

# ---- Table 3: servers with one card of 10 Gbit/s on one switch ----

SERVERS = (8, 12, 15)
TABLE3_SIZE = 10**8
TABLE3_PLANS: Mapping[int, str] = {8: "CPS", 12: "6x2", 15: "5x3"}  # section 5.2 of the paper
TABLE3: Mapping[str, Three] = {
    "GenTree": (0.647, 0.620, 0.632), "CPS": (0.647, 0.660, 0.731), "Ring": (0.719, 0.748, 0.758),
    "RHD": (0.736, 1.520, 1.521),
}  # fmt: skip

# ---- Table 4: servers of 8 A100 with 4 cards of 200 Gbit/s, by number of GPUs; printed in milliseconds ----

TABLE4_SIZES: Mapping[str, int] = {**SIZES, "3.2e8": 32 * 10**7}
TABLE4: Mapping[int, Mapping[str, tuple[float, ...]]] = {
    16: {"GenTree": (0.764e-3, 1.677e-3, 5.058e-3, 15.501e-3), "NCCL": (0.941e-3, 2.695e-3, 8.170e-3, 25.606e-3)},
    32: {"GenTree": (0.842e-3, 2.340e-3, 7.030e-3, 22.343e-3), "NCCL": (1.011e-3, 3.163e-3, 9.081e-3, 27.978e-3)},
    64: {"GenTree": (0.971e-3, 2.668e-3, 8.093e-3, 25.716e-3), "NCCL": (1.149e-3, 3.243e-3, 9.886e-3, 31.049e-3)},
}

# ---- Table 6: which plan each switch has ----

# the plans for the three sizes; _OF_16 is of a switch over 16 servers or switches
_CPS, _ACPS = ("CPS",) * 3, ("ACPS",) * 3
_OF_16, _OF_24, _OF_32 = (("CPS", name, name) for name in ("8x2", "8x3", "8x4"))
TABLE6: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "SS24": {"Root SW": _OF_24},
    "SS32": {"Root SW": ("8x4",) * 3},
    "SYM384": {"Middle SW": _OF_24, "Root SW": _OF_16},
    "SYM512": {"Middle SW": _OF_32, "Root SW": _OF_16},
    "ASY384": {"Middle SW 0-7": _OF_32, "Middle SW 8-15": _OF_16, "Root SW": _ACPS},
    "CDC384": {
        "DC0 Middle SW": _OF_32, "DC0 Root SW": _CPS, "DC1 Middle SW": _OF_16, "DC1 Root SW": _CPS, "Cross DC": _ACPS,
    },
}  # fmt: skip

# ---- Table 7: simulated times ----

TABLE7: Mapping[str, Mapping[str, Three]] = {
    "SS24": {"GenTree": (0.203, 0.503, 1.404), "Ring": (1.082, 1.376, 2.288), "CPS": (0.203, 0.562, 1.673)},
    "SS32": {
        "GenTree": (0.213, 0.507, 1.417), "RHD": (0.337, 0.644, 1.593), "Ring": (1.399, 1.697, 2.617),
        "CPS": (0.223, 0.628, 1.879),
    },
    "SYM384": {"GenTree": (0.503, 1.287, 3.575), "Ring": (2.943, 3.627, 5.742), "CPS": (2.274, 7.132, 22.148)},
    "SYM512": {
        "GenTree": (0.639, 1.627, 4.638), "RHD": (0.896, 1.853, 4.812), "Ring": (3.571, 4.479, 7.285),
        "CPS": (3.479, 10.989, 34.200),
    },
    "ASY384": {"GenTree": (0.570, 1.593, 4.670), "Ring": (3.043, 3.947, 6.741), "CPS": (2.052, 6.421, 19.925)},
    "CDC384": {
        "GenTree": (2.427, 8.299, 25.388), "GenTree*": (4.484, 13.927, 43.116), "Ring": (8.513, 17.329, 44.580),
        "CPS": (11.890, 37.799, 117.882),
    },
}  # fmt: skip

# ---- figures that the text states ----

W_T = 9  # senders from which incast counts, on the testbed of Table 3 (5.2)
FIGURE8_ERROR = {"genmodel": 0.026, "alpha-beta-gamma": 0.198}  # the greatest relative error of each model
FIGURE10_OPTIMUM = "6x2"  # the fastest plan on 12 servers

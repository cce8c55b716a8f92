"""The built-in topologies by name. To add one: a file with a make function, and a line here."""

from __future__ import annotations

from antiphon.registry import Entry

TABLE = {
    "ring": Entry("antiphon.topologies.regular:ring", "ranks in a circle, a link each way", {"ranks": "2 or more"}),
    "full": Entry("antiphon.topologies.regular:full", "a link from every rank to every other", {"ranks": "2 or more"}),
    "dgx1v": Entry("antiphon.topologies.dgx1:dgx1v", "NVIDIA DGX-1 with V100: 8 GPUs, 6 NVLinks each", {"ranks": "8"}),
}

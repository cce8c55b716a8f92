"""A schedule of one's own: broadcast down a binary tree, in pieces, compared with what a planner makes."""

import antiphon

machine = antiphon.topology("full:ranks=15")


def descend(place: antiphon.Places, rank: int) -> None:
    """To both children, and from each to its own."""
    for child in (2 * rank + 1, 2 * rank + 2):
        if child < machine.ranks:
            descend(place.copy_to(child), child)


with antiphon.write("broadcast", machine, pieces=64) as w:
    descend(w[0, "input", 0], 0)

antiphon.save(w.plan, "plan.json")
assert antiphon.verify("plan.json", proof=True)
(row,) = antiphon.run(w.plan, "64KiB")
assert row["correct"]

ring = antiphon.plan("broadcast", machine, planner="ring", options={"pieces": 64})
for nbytes in ("64KiB", "64MiB"):
    times = [antiphon.predict(plan, nbytes)[0]["seconds"] * 1e6 for plan in (w.plan, ring)]
    print(f"{nbytes}: {times[0]:.1f} us down the tree, {times[1]:.1f} us around the ring")

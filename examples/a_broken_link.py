"""What a broken link costs: the same collectives before and after, and the best that is left."""

import antiphon

whole = antiphon.topology("dgx1v")
broken = antiphon.machines.degrade(whole, drop_links="0-3")  # ranks 0 and 3 are no longer linked

for kind in ("allreduce", "allgather"):
    best = antiphon.tune(kind, broken, nbytes="1MiB:64MiB", against=whole)
    (loss,) = best.losses
    before, after = float(loss.all.bytes_per_second), float(loss.left.bytes_per_second)
    last = best.ranges[-1]
    print(
        f"{kind}: at most {after / 1e9:.1f} GB/s instead of {before / 1e9:.1f}; "
        f"best is {last.candidate.planner}, {last.at / last.seconds / 1e9:.1f} GB/s at {last.at >> 20} MiB"
    )
    assert after <= before

"""One plan from start to end: made, proven, compared with the limit, priced, and run with real data."""

import antiphon

machine = antiphon.topology("ring:ranks=6,bandwidth=50GB/s,latency=2us")
limits = antiphon.bound("allgather", machine)
plan = antiphon.plan("allgather", machine, planner="ring")

assert antiphon.verify(plan, proof=True)  # a report: true if nothing is wrong, and the bounds hold
claims = plan.entries[0].claims
print(f"{claims['steps']} steps (no fewer than {limits.latency_steps}), bandwidth gap {claims['bandwidth_gap']:.3g}")

for row in antiphon.predict(plan, ["64KiB", "64MiB"]):
    print(f"{row['nbytes']:>9} bytes: {row['seconds'] * 1e6:8.1f} us predicted, bottleneck: {row['bottleneck']}")

(row,) = antiphon.run(plan, "96KiB", dtype="bfloat16", op="sum")
assert row["correct"]

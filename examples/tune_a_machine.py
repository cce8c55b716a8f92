"""The best allreduce for every size on a DGX-1, as a table, a plan file and a page with pictures."""

from pathlib import Path

import antiphon

out = Path("build/examples")
out.mkdir(parents=True, exist_ok=True)

machine = antiphon.topology("dgx1v")
best = antiphon.tune("allreduce", machine, nbytes="1KB:1GB")

print(f"allreduce on {machine.name}: {sum(c.status == 'ok' for c in best.candidates)} schedules tried")
for r in best.ranges:
    print(f"  {r.start:>10} to {r.stop:>10} bytes: {r.candidate.planner:20} {r.gap:.2f} times the bound")

best.save(out / "allreduce.json")  # antiphon verify and antiphon run take it
(out / "allreduce.html").write_text(antiphon.pages.report(best))
assert antiphon.verify(best.plan)

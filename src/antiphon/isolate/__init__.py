"""Work in separate processes, each with a CPU budget and a memory limit, and safe against crashes.

`as_done` runs jobs in any order on a pool of worker programs, so that a user's planner cannot harm another job.
`in_order` runs each job in a process forked from this one, which shares everything loaded here, and yields results in
the order of the jobs. `stream_job` runs one job, either way:

    terms = Terms(work, workers=4, seconds=lambda job: 60.0)
    for job, event in as_done(jobs, terms):     # event: Said(value) while it works, then Ended(result)
        ...

A job can report intermediate results, which are kept even if it is killed later. Ctrl-C, an abandoned iteration, and
even SIGKILL of this process leave no process behind.

Budgets count the CPU time of a process and its descendants, so load on the machine does not shorten them; time in which
all of them sleep is limited separately, with `SLEEP` seconds on top (docs/decisions.md).
"""

from antiphon.isolate._child import Say, in_words
from antiphon.isolate._crew import apart, as_done, in_order, stream_job, usual_workers
from antiphon.isolate._meter import cpu_clock
from antiphon.isolate._process import GRACE, Ended, Lost, Said, Starved, Stopped, Terms, can_fork

__all__ = [
    "GRACE", "Ended", "Lost", "Said", "Say", "Starved", "Stopped", "Terms", "apart", "as_done", "can_fork", "cpu_clock",
    "in_order", "in_words", "stream_job", "usual_workers",
]  # fmt: skip

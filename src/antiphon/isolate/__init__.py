"""Work in separate processes, each with a CPU budget and a memory limit, and safe against crashes.

`as_done` runs jobs on a pool of worker processes and yields results as they come. `in_order` forks a process for each
job, which shares everything loaded here, and yields results in the order of the jobs. `stream_job` runs a single job
and yields its intermediate results; `run_in_child` runs one function and returns its value:

    terms = PoolTerms(work, workers=4, seconds=lambda job: 60.0)
    for job, event in as_done(jobs, terms):     # event: Sent(value) while it works, then Ended(result)
        ...

`run_jobs` runs independent jobs by an engine: on such a pool, on Ray or on Dask; `run_each` yields in order.

A job receives a function `send` for intermediate results, which are kept even if the job is killed later. The result of
a job is `Stopped` if its budget ended, `Starved` if it needed more memory than its limit, `Lost` if it crashed. Ctrl-C,
an abandoned iteration, and even SIGKILL of this process leave no process behind.

Inside: `_pool` has the loops over jobs, `_process` the parent's side of one process, `_child` the child's side,
`_meter` measures CPU time, and `_here` runs jobs in this process where processes cannot be isolated (CAN_ISOLATE).

Budgets count the CPU time of a process and its descendants, so load on the machine does not shorten them; time in which
all of them sleep is limited separately, with `MAX_SLEEP` seconds on top (docs/decisions.md).
"""

from antiphon.isolate._child import Send, describe_error
from antiphon.isolate._engines import check_engine, run_each, run_jobs
from antiphon.isolate._here import can_interrupt, interrupted_after
from antiphon.isolate._meter import cpu_clock
from antiphon.isolate._pool import as_done, available_processors, in_order, run_in_child, stream_job, usual_workers
from antiphon.isolate._process import CAN_ISOLATE, GRACE, Ended, Lost, PoolTerms, Sent, Starved, Stopped, can_fork

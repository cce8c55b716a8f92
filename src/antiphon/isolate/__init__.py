"""Work in separate processes, each with a CPU budget and a memory limit, and safe against crashes.

`as_done` runs jobs in any order, in programs of their own that take one job after the other: whatever users' planners
do there harms nobody else. `in_order` runs each in a process forked from this one, which has all that is here at hand,
and hands results on in the order of the jobs. `stream_job` does one job, either way. A job tells what it finds while it
works, and what it told is kept whatever becomes of it. Ctrl-C, an early end of whoever asked, and even SIGKILL leave no
process behind.

Budgets count the CPU time of a process and of all that it starts, so that a busy machine takes nothing from them; time
in which all of these sleep counts apart, with `SLEEP` seconds on top (docs/decisions.md).
"""

from antiphon.isolate._child import Say, in_words
from antiphon.isolate._crew import apart, as_done, in_order, stream_job, usual_workers
from antiphon.isolate._meter import cpu_clock
from antiphon.isolate._process import GRACE, Ended, Lost, Said, Starved, Stopped, Terms, can_fork

__all__ = [
    "GRACE", "Ended", "Lost", "Said", "Say", "Starved", "Stopped", "Terms", "apart", "as_done", "can_fork", "cpu_clock",
    "in_order", "in_words", "stream_job", "usual_workers",
]  # fmt: skip

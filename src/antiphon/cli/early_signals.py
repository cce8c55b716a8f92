"""End the command on Ctrl-C or SIGTERM while it is still being loaded: one line and the exit code, no traceback.

The command line imports this file before all others. It installs handlers only in a process that is the command line:
`import antiphon` installs none. The modules that it imports are in memory when Python starts, so that no file has to be
searched for before the handlers are installed.
"""

import _signal  # type: ignore[import-not-found]  # the C module under `signal`, which is slower to load
import sys
from os import _exit, getpid
from os import write as _write


def _is_the_command() -> bool:
    """Return whether this process is the command line, started by its script or by `python -m antiphon`."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    # In `python -m antiphon tune`, sys.argv is ["-m", "tune"] while Python looks for the module; sys.orig_argv has its
    # name before "tune", as "antiphon" or "-mantiphon".
    if name == "-m":
        name = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return name.rpartition("/")[2] == "antiphon"


def _end_process(number: int, frame: object) -> None:
    """Print one line and end the process: no work has begun, so none is lost.

    A forked child prints nothing, as its parent prints the line. A second signal during this function has no effect.
    """
    global _IS_ENDING  # noqa: PLW0603
    if _IS_ENDING:
        return
    _IS_ENDING = True
    if getpid() == _PROCESS:
        _write(2, b"antiphon: terminated\n" if number == _signal.SIGTERM else b"antiphon: interrupted\n")
    _exit(128 + number)  # as shells report a signal


_IS_ENDING = False
_PROCESS = getpid()
# These handlers serve until `cli.signals` installs its own. A signal that is ignored (background jobs) remains ignored.
if _is_the_command():
    for _number, _usual in ((_signal.SIGINT, _signal.default_int_handler), (_signal.SIGTERM, _signal.SIG_DFL)):
        if _signal.getsignal(_number) == _usual:
            _signal.signal(_number, _end_process)

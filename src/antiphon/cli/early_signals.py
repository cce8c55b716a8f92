"""Ctrl-C and SIGTERM while the command is still being loaded: one line and the exit code, no traceback.

Imported before all else of the command line, and only that installs a handler: `import antiphon` does not. The modules
below are in memory when Python starts, so that nothing is looked for on the disk until Ctrl-C is heard.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` is made of
import sys
from os import _exit, getpid
from os import write as _write


def _is_the_command() -> bool:
    """Whether this process is the command line, by its script or by `python -m antiphon`: not one that imports us."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # Python looks for the module, whose name stands before the arguments
        name = sys.orig_argv[-len(sys.argv)].removeprefix("-m")
    return name.rpartition("/")[2] == "antiphon"


def _leave(number: int, frame: object) -> None:
    """While nothing is being done yet, nothing is lost by leaving. A child that has just been forked says nothing, and
    a second signal nothing more."""
    global _LEAVING  # noqa: PLW0603
    if _LEAVING:
        return
    _LEAVING = True
    if getpid() == _PROCESS:
        _write(2, b"antiphon: terminated\n" if number == _signal.SIGTERM else b"antiphon: interrupted\n")
    _exit(128 + number)


_LEAVING = False
_PROCESS = getpid()
if _is_the_command():  # antiphon.cli takes over; where Ctrl-C is ignored (in a background job of a shell) it stays so
    for _number, _usual in ((_signal.SIGINT, _signal.default_int_handler), (_signal.SIGTERM, _signal.SIG_DFL)):
        if _signal.getsignal(_number) == _usual:
            _signal.signal(_number, _leave)

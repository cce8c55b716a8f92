"""Recorded jobs, once more with our plans (docs/replay.md)."""

from antiphon.api.replaying import learned, policies
from antiphon.api.replaying import replay as job
from antiphon.deprecations import stay_callable

__all__ = ["job", "learned", "policies"]

stay_callable(__name__)  # as the function antiphon.replay() of the previous version, with a warning

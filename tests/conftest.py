"""Hypothesis profiles: `default`, and `thorough` for a longer search (ANTIPHON_HYPOTHESIS=thorough).

No test sees what an earlier run has decided: the cache is off.
"""

import os

from hypothesis import settings

settings.register_profile(
    "default",
    parent=settings(),
    deadline=None,  # the first call of a solver is slow, and says nothing
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("ANTIPHON_HYPOTHESIS") or "default")

os.environ["ANTIPHON_CACHE"] = "off"

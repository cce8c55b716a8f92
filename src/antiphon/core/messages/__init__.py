"""The table of messages of a schedule, read by models, exports, traces and programs (docs/program.md)."""

from __future__ import annotations

from antiphon.core.messages.graph import MOST_DEPENDENCIES, MessageGraph, cycle_of, cycle_text
from antiphon.core.messages.paths import Paths, paths, resource_name, seconds_per_byte, uses_of
from antiphon.core.messages.sets import Sets, sets
from antiphon.core.messages.table import Messages, messages
from antiphon.core.messages.waits import LEFT, RECEIVED, Waits, waits

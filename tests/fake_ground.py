"""A runtime that runs nothing: it makes times up, and notes what it was asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.core.schedule import Schedule
from antiphon.registry import Entry, RuntimeCapabilities
from antiphon.runtimes.measure.case import Case, How, RowCallback, Runnable, Runtime, group_cases
from antiphon.runtimes.measure.loop import measured_row
from antiphon.runtimes.measure.race import Race

ENTRY = Entry("fake_ground:Fake", "makes times up", RuntimeCapabilities(library="nobody's"))


@dataclass(frozen=True, eq=False)
class Wanted:
    """A case as tests look at it."""

    schedule: Schedule
    nbytes: int
    in_place: bool
    round: int


asked: list[Wanted] = []
launches: list[int] = []
stop_after: list[int] = []  # of one: Ctrl-C comes before the heat with this number
done: list[int] = []


def speed(wanted: Wanted) -> tuple[float, float | None]:
    """Ours and the library's; tests put their own in its place."""
    return 1e-6 * (wanted.nbytes + 1), 2e-6 * (wanted.nbytes + 1)


def wrong(wanted: Wanted) -> int:
    return 0


class Fake(Runtime):
    def run(
        self,
        programs: Sequence[Runnable],
        cases: Sequence[Case],
        how: How,
        heard: RowCallback,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        launches.append(len(cases))
        for heat in group_cases(cases):
            if enough():
                return
            if stop_after and len(done) == stop_after[0]:
                raise KeyboardInterrupt
            done.append(len(heat))
            some = [cases[number] for number in heat]
            wanted = [Wanted(programs[one.program].schedule, one.nbytes, one.in_place, 0) for one in some]
            asked.extend(wanted)
            race = Race(len(heat), some[0].repeat)
            knockout = some[0].race is not None and some[0].knockout
            for turn in range(race.max_rounds if knockout else some[0].repeat):
                now = [Wanted(one.schedule, one.nbytes, one.in_place, turn) for one in wanted]
                race.add([speed(now[number])[0] for number in race.going], speed(now[0])[1])
                if knockout and race.decide():
                    break
            standings = race.standings()
            for place, number in enumerate(heat):
                spent = np.array([times[place] for times in race.times])
                library = np.array(race.theirs) if race.theirs else None
                row = measured_row(spent, library, wrong(wanted[place]))
                one = standings[place]
                more = {"over_best": one.ratio, "over_best_interval": [one.low, one.high], "tied": one.tied}
                heard(number, {**row, **(more if some[0].race is not None else {})})

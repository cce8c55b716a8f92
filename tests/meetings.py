"""An exchange of texts between threads that stand for the ranks of a job."""

import threading
from collections.abc import Callable, Sequence


class Meeting:
    """What every rank gives is what every rank gets. `before`: is called once when all texts are known."""

    def __init__(self, ranks: int, before: Callable[[list[str]], None] = lambda texts: None) -> None:
        self.texts = [""] * ranks
        self.before = before
        self.gate = threading.Barrier(ranks, timeout=20)

    def of(self, rank: int) -> Callable[[str], Sequence[str]]:
        def exchange(text: str) -> Sequence[str]:
            self.texts[rank] = text
            if not self.gate.wait():
                self.before([*self.texts])
            self.gate.wait()
            return [*self.texts]

        return exchange

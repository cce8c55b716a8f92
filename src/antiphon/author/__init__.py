"""A small language for schedules that people write by hand: statements about places become rows and steps."""

from antiphon.author.layout import Place
from antiphon.author.writing import Places, Simultaneous, Writing

__all__ = ["Place", "Places", "Simultaneous", "Writing"]

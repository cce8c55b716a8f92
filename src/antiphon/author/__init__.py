"""Schedules that people write: statements about places, from which rows and their steps follow."""

from antiphon.author.ground import Place
from antiphon.author.writing import Places, Simultaneous, Writing

__all__ = ["Place", "Places", "Simultaneous", "Writing"]

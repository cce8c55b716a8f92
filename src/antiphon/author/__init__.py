"""Schedules that people write: statements about places, from which rows and their steps follow."""

from antiphon.author.ground import Place
from antiphon.author.writing import Group, Places, Writing

__all__ = ["Group", "Place", "Places", "Writing"]

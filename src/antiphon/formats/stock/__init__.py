"""Tuning tables, rules and graphs that unmodified libraries read (docs/stock.md)."""

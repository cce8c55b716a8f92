"""From a program to the tables of Antiphon's GPU engine."""

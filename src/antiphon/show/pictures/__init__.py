"""Machines, plans and times as SVG and PNG."""

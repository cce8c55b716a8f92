"""Public functions of the package, one file per theme.

The command line calls them, too. Heavy libraries are imported inside the functions, so that `import antiphon` and
`antiphon --help` stay fast.
"""

"""Public functions of the package, by theme. The command line calls them, too. Heavy libraries are imported when
called."""

"""The functions that users call, by theme; `antiphon` itself shows them all. Whatever is heavy they import when called,
and the command line calls them, too."""

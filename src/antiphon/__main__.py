"""python -m antiphon: the command line."""

from antiphon.cli import main

if __name__ == "__main__":
    main()

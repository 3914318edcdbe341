"""``python -m mulligan``: the command line, where no script is on the path."""

from mulligan.cli.entry import main

if __name__ == "__main__":
    main()

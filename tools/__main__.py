"""`python -m tools`: the boundgen command where its script is not on the PATH."""

from tools.cli import main

if __name__ == "__main__":
    main()

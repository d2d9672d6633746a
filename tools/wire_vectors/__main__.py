"""`python -m tools.wire_vectors [--check]`: write schemas/vectors, or say what differs (exit status 1).

A vector that is published is never changed: producers in other languages are tested with it. New ones are
added.
"""

from __future__ import annotations

import argparse
import sys

from tools.wire_vectors.files import FOLDER, differences, write


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wire_vectors", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        found = differences(FOLDER)
        sys.stdout.writelines(f"{line}\n" for line in found)
        return 1 if found else 0
    write(FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())

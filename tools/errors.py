"""What the command line tells its user in one message and exit status 2, never as a traceback.

Errors of the other packages that mean the same (a wrong config value, an artifact that does not fit) are
recognised by tools.cli, so that nobody has to translate them.
"""

from __future__ import annotations


def told(error: OSError) -> str:
    """What the system says and of which file, without numbers and Python's words."""
    name = error.filename2 or error.filename  # of a copy or a rename, the second is what is written
    where = f"{name}: " if name is not None else ""
    return f"{where}{error.strerror or error}"


class UserError(RuntimeError):
    """Something the person at the terminal can mend; the text says what and how."""

"""The vectors as files: NAME.bin and NAME.json in schemas/vectors. Writing is deterministic."""

from __future__ import annotations

from pathlib import Path

from tools.wire_vectors import broken, replies, requests
from tools.wire_vectors.vector import Vector

FOLDER = Path(__file__).parents[2] / "schemas" / "vectors"


def every_vector() -> list[Vector]:
    """All of them, by name."""
    made = [*requests.written(), *requests.said_otherwise(), *replies.written(), *replies.said_otherwise()]
    made += broken.requests()
    by_name = {vector.name: vector for vector in made}
    assert len(by_name) == len(made), "every vector has a name of its own"
    return [by_name[name] for name in sorted(by_name)]


def expected_files() -> dict[str, bytes]:
    """File name -> what it holds."""
    files: dict[str, bytes] = {}
    for vector in every_vector():
        files[f"{vector.name}.bin"] = vector.data
        files[f"{vector.name}.json"] = vector.text().encode()
    return files


def differences(folder: Path) -> list[str]:
    """What is not as it should be, one line a file; nothing is written."""
    wanted, there = expected_files(), {path.name for path in folder.glob("*")} if folder.is_dir() else set()
    found = [f"{name}: missing" for name in sorted(wanted.keys() - there)]
    found += [f"{name}: nobody's" for name in sorted(there - wanted.keys())]
    same = sorted(wanted.keys() & there)
    return found + [f"{name}: differs" for name in same if (folder / name).read_bytes() != wanted[name]]


def write(folder: Path) -> None:
    """Make the folder hold exactly the vectors."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = expected_files()
    for path in folder.glob("*"):
        if path.name not in wanted:
            path.unlink()
    for name, data in wanted.items():
        (folder / name).write_bytes(data)

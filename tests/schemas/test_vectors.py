"""schemas/vectors fix the wire: the codec reads and writes each of them exactly as its JSON says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgpack
import pytest

from schemas.codec import (
    REPLY_LIMITS,
    REQUEST_LIMITS,
    DecodeError,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from schemas.messages import ErrorCode, Outcome, Reply, Request
from schemas.plain import Limits
from tools.wire_vectors.files import FOLDER, differences, write
from tools.wire_vectors.vector import read_bytes

NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
BROKEN = [name for name in NAMES if name.startswith("broken-")]
READ = [name for name in NAMES if not name.startswith("broken-")]


def data(name: str) -> bytes:
    return (FOLDER / f"{name}.bin").read_bytes()


def said(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"), object_hook=read_bytes)
    return read


def decode(kind: str, packed: bytes, limits: dict[str, int]) -> Request | Reply:
    if kind == "request":
        return decode_request(packed, Limits(**limits) if limits else REQUEST_LIMITS)
    return decode_reply(packed, Limits(**limits) if limits else REPLY_LIMITS)


def encode(message: Request | Reply) -> bytes:
    return encode_request(message) if isinstance(message, Request) else encode_reply(message)


@pytest.mark.parametrize("name", READ)
def test_read_and_written_exactly(name: str) -> None:
    told = said(name)
    model = Request if told["kind"] == "request" else Reply
    message = decode(told["kind"], data(name), {})
    assert message == model.model_validate(told["meaning"])
    shortest = data(told["encodes_to"])
    assert encode(message) == shortest
    unpacked = msgpack.unpackb(shortest)
    assert unpacked == told["meaning"]
    assert list(unpacked) == list(told["meaning"])  # a writer in another language may go by the order


@pytest.mark.parametrize("name", BROKEN)
def test_refused_with_this_code_and_field(name: str) -> None:
    told = said(name)
    with pytest.raises(DecodeError) as caught:
        decode(told["kind"], data(name), told.get("limits", {}))
    error = caught.value
    assert {"code": error.code, "field": error.field, "request_id": error.request_id} == told["error"]
    assert error.message


def test_every_outcome_and_error_code_is_there() -> None:
    replies = [said(name)["meaning"] for name in READ if said(name)["kind"] == "reply"]
    assert {reply["outcome"] for reply in replies} == set(Outcome)
    codes = {reply["error"]["code"]: reply["outcome"] for reply in replies if "error" in reply}
    assert set(codes) >= set(ErrorCode)
    assert all(codes[code] == code.outcome for code in ErrorCode)
    refused = {said(name)["error"]["code"] for name in BROKEN}
    assert refused == {
        "malformed",
        "unsupported_version",
        "invalid_field",
        "too_large",
    }  # what a codec can say


def test_the_files_are_those_that_the_script_writes(tmp_path: Path) -> None:
    assert differences(FOLDER) == []
    write(tmp_path)
    assert differences(tmp_path) == []
    (tmp_path / "request-text.bin").write_bytes(b"")
    (tmp_path / "stray.bin").write_bytes(b"")
    (tmp_path / "reply-ok.json").unlink()
    assert differences(tmp_path) == [
        "reply-ok.json: missing",
        "stray.bin: nobody's",
        "request-text.bin: differs",
    ]
    write(tmp_path)
    assert differences(tmp_path) == []


def test_they_are_small() -> None:
    assert max(len(data(name)) for name in NAMES) < 4096

"""`boundgen capture --follow`: until it is told to end, or is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

from capture_desk import WAIT_SECONDS, Desk, read
from tools.capture.capture_files import CaptureReader


def start(desk: Desk, *more: str) -> subprocess.Popen[str]:
    """The command as a process that follows, past its beginning."""
    command = [sys.executable, "-m", "tools", *desk.arguments("--follow", "--replies", desk.replies, *more)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "capturing" not in (line := process.stderr.readline()):
        assert line, "it ended"
    return process


def wait_for(desk: Desk, requests: int, replies: int) -> None:
    """Until the growing file holds so many."""
    give_up_s = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up_s:
        if desk.output.exists() and desk.output.stat().st_size:
            found = [each.kind for each in read(desk.output)]
            if (found.count("request"), found.count("reply")) == (requests, replies):
                return
        time.sleep(0.05)
    raise TimeoutError(f"not {requests} requests and {replies} replies")


def test_following_until_told_to_end(desk: Desk):
    desk.send(desk.request("before"), desk.reply("before"))
    process = start(desk, "--since", "1h")
    try:
        wait_for(desk, 1, 1)
        desk.send(desk.reply("r-1"))  # read before its request, and held
        time.sleep(1)
        desk.send(desk.request("r-1"), desk.request("r-2"), desk.reply("r-2"), desk.reply("stranger"))
        wait_for(desk, 3, 3)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["requests"] == 3
    assert CaptureReader(desk.output).cut_bytes == 0


def test_what_a_killed_capture_leaves_can_be_read(desk: Desk):
    process = start(desk, "--since", "1h")
    try:
        desk.send(*(desk.request(f"r-{number}") for number in range(5)))
        wait_for(desk, 5, 0)
    finally:
        process.kill()
        process.communicate()
    assert len(read(desk.output)) == 5

"""The Java and Go producers of schemas/README.md: the page shows the files, and the files write the wire.

The Java one is compiled and run against the broker where a JDK and KAFKA_HOME are. The encoding of the Go one
is vetted and run where `go` is; without it, only the page's literal of its bytes is compared with the vector.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.codec import decode_request, encode_request
from schemas.headers import parse_headers
from schemas.messages import Outcome, Request, Sample
from worker_service import Mouth

SCHEMAS = Path(__file__).parents[3] / "schemas"
README = (SCHEMAS / "README.md").read_text(encoding="utf-8")
VECTOR = (SCHEMAS / "vectors" / "request-texts.bin").read_bytes()
TIMEOUT_MS = 2000  # what both programs write
SECONDS = 240  # to compile or run on a busy machine

# id, pipeline, texts, timeout_ms: every length and number form there is
CASES: list[tuple[str, str, list[str], int]] = [
    ("r-7f3a", "relevance", ["red shoes", "naïve café 東京 👟"], 2000),
    ("i" * 31, "p" * 32, [], 0),
    ("id", "p", ["x" * 255, "x" * 256, "é" * 32768, ""], 127),
    ("id", "p", [str(number) for number in range(15)], 128),
    ("id", "p", [str(number) for number in range(16)], 255),
    ("id", "p", ["a"] * 300, 256),
    ("id", "p", ["a"], 65535),
    ("id", "p", ["a"], 65536),
    ("id", "p", ["a"], 2**32 - 1),
    ("id", "p", ["a"], 2**32),
    ("id", "p", ["a"], 2**63 - 1),
]


def expected(request_id: str, pipeline: str, texts: list[str], timeout_ms: int) -> bytes:
    """As the codec writes it, also what no worker would take (no samples, ...)."""
    samples = tuple(Sample(text=text) for text in texts)
    return encode_request(
        Request.model_construct(
            **{"v": 1, "id": request_id, "pipeline": pipeline, "samples": samples, "timeout_ms": timeout_ms}
        )
    )


def run(*command: str | Path, folder: Path) -> str:
    """What a program prints; its complaints if it fails."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    environment |= {"GOCACHE": str(folder / "cache"), "GO111MODULE": "on", "GOTOOLCHAIN": "local"}
    ran = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout.decode()


def find_tool(tool: str) -> str:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"no {tool} on PATH")
    return found


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """The command that runs a class of the folder, and the folder: Producer.java compiled."""
    compiler, runner = find_tool("javac"), find_tool("java")
    home = os.environ.get("KAFKA_HOME")
    if not home:
        pytest.skip("KAFKA_HOME is not set: the client's jar is in its libs")
    folder = tmp_path_factory.mktemp("java")
    classes = f"{folder}{os.pathsep}{Path(home).resolve() / 'libs'}/*"
    (folder / "Cases.java").write_text(java_cases(), encoding="utf-8")
    sources = (SCHEMAS / "producers" / "Producer.java", folder / "Cases.java")
    options = ("-Xlint:all,-classfile,-processing,-path", "-encoding", "UTF-8", "-cp", classes, "-d", folder)
    run(compiler, *options, *sources, folder=folder)
    return [runner, "-XX:TieredStopAtLevel=1", "-Xmx64m", "-cp", classes], folder


def java_cases() -> str:
    """A class that prints what Producer.request makes of each case, in hex."""
    calls = "\n".join(
        f"print(Producer.request({json.dumps(name)}, {json.dumps(pipeline)}, {java_list(texts)}, {ms}L));"
        for name, pipeline, texts, ms in CASES
    )
    return f"""
class Cases {{
    static void print(byte[] data) {{ System.out.println(java.util.HexFormat.of().formatHex(data)); }}
    public static void main(String[] args) throws java.io.IOException {{
{calls}
    }}
}}
"""


def java_list(texts: list[str]) -> str:
    """A list of literals; many equal ones as code, since a method bounds its size."""
    if len(texts) > 40:
        return f"java.util.Collections.nCopies({len(texts)}, {java_text(texts[0])})"
    return f"java.util.List.of({', '.join(map(java_text, texts))})"


def java_text(text: str) -> str:
    """A literal; long repetitions as code, since a class file bounds its strings."""
    if len(text) > 40:
        return f"{json.dumps(text[0], ensure_ascii=False)}.repeat({len(text)})"
    return json.dumps(text, ensure_ascii=False)


def test_java_writes_what_the_codec_writes(java: tuple[list[str], Path]) -> None:
    command, folder = java
    printed = run(*command, "Cases", folder=folder).split()
    assert [bytes.fromhex(line) for line in printed] == [expected(*case) for case in CASES]
    assert bytes.fromhex(printed[0]) == VECTOR


async def test_what_java_sends_is_read_and_answered(
    java: tuple[list[str], Path], sites: Any, apache_kafka: str
) -> None:
    site = await sites()
    command, folder = java
    sender = [*command, "Producer", apache_kafka, site.topic, site.replies]
    shoes, numbers = ["r-7f3a", *CASES[0][2]], ["r-2", "41", "42"]
    with site.worker():
        async with Mouth(site) as mouth:
            told = await asyncio.to_thread(run, *sender, "relevance", *shoes, folder=folder)
            await asyncio.to_thread(run, *sender, "numbers", *numbers, folder=folder)
            await mouth.until(lambda: len(mouth.answers) == 2)
    assert told.split() == [site.topic, "0", "0"]
    (stranger,), (answer,) = mouth.by_correlation[b"r-7f3a"], mouth.by_correlation[b"r-2"]
    assert stranger.reply.outcome is Outcome.INVALID  # this worker has another pipeline
    assert (answer.reply.outcome, answer.reply.id) == (Outcome.OK, "r-2")
    assert answer.reply.results == ({"id": 0, "number": 41}, {"id": 1, "number": 42})
    async with AIOKafkaConsumer(bootstrap_servers=apache_kafka, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(site.topic, 0)])
        first = await consumer.getone()
    assert first.value == VECTOR
    assert decode_request(first.value).timeout_ms == TIMEOUT_MS
    address = parse_headers(first.headers)
    assert (address.topic, address.correlation_id) == (site.replies, b"r-7f3a")


def test_go_writes_what_the_codec_writes(tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go on PATH; its bytes as the page shows them are compared with the vector")
    shutil.copy(SCHEMAS / "producers" / "request.go", tmp_path)
    (tmp_path / "go.mod").write_text("module producer\n\ngo 1.19\n")
    calls = "\n".join(
        f'fmt.Printf("%x\\n", request({json.dumps(request_id)}, {json.dumps(pipeline)}, '
        f"[]string{{{', '.join(json.dumps(text, ensure_ascii=False) for text in texts)}}}, {timeout_ms}))"
        for request_id, pipeline, texts, timeout_ms in CASES
    )
    (tmp_path / "main.go").write_text(
        f'package main\n\nimport "fmt"\n\nfunc main() {{\n{calls}\n}}\n', encoding="utf-8"
    )
    run(go, "vet", ".", folder=tmp_path)
    printed = run(go, "run", ".", folder=tmp_path).split()
    assert [bytes.fromhex(line) for line in printed] == [expected(*case) for case in CASES]


def test_the_page_shows_the_files() -> None:
    for name, language in (("Producer.java", "java"), ("request.go", "go"), ("producer.go", "go")):
        source = (SCHEMAS / "producers" / name).read_text(encoding="utf-8")
        assert f"```{language}\n{source}```" in README, f"schemas/README.md does not show {name} as it is"


def test_the_bytes_that_the_page_says_they_write_are_the_vector() -> None:
    """For Go this is all that is checked on a machine without it."""
    found = re.search(r"```hex request-texts\n(.*?)```", README, re.DOTALL)
    assert found is not None
    assert bytes.fromhex(found[1]) == VECTOR == expected(*CASES[0])

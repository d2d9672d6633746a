"""One node of a real Apache Kafka (KRaft) from KAFKA_HOME's distribution, for the time of a benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.processes import Child, free_ports, listens

START_SECONDS = 90.0  # seen 3 s on two idle cores; a busy machine is slower
HEAP = "-Xms256m -Xmx512m"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"  # any 16 bytes in base64

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


@contextmanager
def apache_kafka(home: Path, folder: Path) -> Iterator[str]:
    """Yields the bootstrap servers; data and logs go to `folder`. Raises ChildError if it does not start."""
    plain, controller = free_ports(2)
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(plain=plain, controller=controller, data=folder / "data"))
    env = {"KAFKA_HEAP_OPTS": HEAP, "LOG_DIR": str(folder / "logs")}
    storage = [str(home / "bin" / "kafka-storage.sh"), "format", "-t", CLUSTER_ID, "-c", str(settings)]
    with Child("kafka-storage.sh format", storage, folder / "format.log", env) as format_:
        format_.wait_ready(lambda: format_.process.poll() == 0, START_SECONDS)
    start = [str(home / "bin" / "kafka-server-start.sh"), str(settings)]
    with Child("Apache Kafka", start, folder / "kafka.log", env) as server:
        server.wait_ready(lambda: listens(plain), START_SECONDS)
        yield f"127.0.0.1:{plain}"

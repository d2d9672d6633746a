"""What can be set about a client beyond addresses and topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.headers import Dialect


@dataclass(frozen=True)
class ClientSettings:
    """Defaults suit Apache Kafka and requests of tens of milliseconds."""

    grace_ms: float = 1000  # how long after its timeout a request's reply (an `expired` one) may still come
    wait_ms: float = 60_000  # how long to wait for a request without a timeout
    start_timeout_s: float = 15.0
    send_timeout_s: float = 5.0  # for the brokers to acknowledge; also what a dead broker costs the reader
    redis_timeout_ms: float = 15  # the most that Redis may add to a call
    redis_pause_s: float = 1.0  # how long Redis is left alone after a failure
    clock_refresh_s: float = 10.0  # how often the offset to Redis' clock is measured again
    fetch_max_wait_ms: int = 100  # 5 with the embedded broker, whose long poll does not wake on data
    topic_refresh_ms: int = 5000  # how soon partitions added to the reply topic are read
    reply_partition: int | None = None  # ask for replies in this partition and read it alone
    dialect: Dialect = "spring"
    max_pending: int = 100_000
    kafka: Mapping[str, Any] = field(
        default_factory=dict
    )  # security_protocol, ssl_context, sasl_* of aiokafka

    def __post_init__(self) -> None:
        for key in (
            "grace_ms",
            "wait_ms",
            "start_timeout_s",
            "send_timeout_s",
            "redis_timeout_ms",
            "max_pending",
        ):
            if getattr(self, key) <= 0:
                raise ValueError(f"{key} = {getattr(self, key)!r}: must be above 0")
        if self.reply_partition is not None and self.dialect != "spring":
            text = "only the spring dialect can name a reply partition"
            raise ValueError(f"reply_partition = {self.reply_partition!r}: {text}")

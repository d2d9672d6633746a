"""The async client: requests out, replies in. The only part of schemas that knows Kafka and Redis."""

from schemas.client.errors import ClientError, ReplyTimeout
from schemas.client.pending import Pending
from schemas.client.session import Client
from schemas.client.settings import ClientSettings
from schemas.messages import Sample

__all__ = ["Client", "ClientError", "ClientSettings", "Pending", "ReplyTimeout", "Sample"]

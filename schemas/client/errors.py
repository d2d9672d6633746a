"""Why there is no reply. Every outcome that a worker reports is a Reply, never one of these."""

from __future__ import annotations

from collections.abc import Mapping


class ClientError(Exception):
    """Base of all errors of the client, bad arguments (ValueError) apart."""


class SendError(ClientError):
    """The request was not acknowledged: it may or may not have reached the topic."""


class UnknownTopicError(SendError):
    """The brokers have no such topic; nothing was sent."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist")
        self.topic = topic


class ReplyTimeout(ClientError, TimeoutError):  # noqa: N818 - named for what happened, as TimeoutError is
    """No reply by the request's timeout plus the client's grace. The request may still run."""

    def __init__(self, request_id: str, waited_ms: float) -> None:
        super().__init__(f"no reply to request {request_id!r} within {waited_ms:.0f} ms")
        self.request_id = request_id
        self.waited_ms = waited_ms


class ReplyDecodeError(ClientError):
    """A reply came that cannot be read; the cause is the codec's DecodeError."""


class ClientClosedError(ClientError):
    """The client was closed before the reply came, or before the call."""


class MissingRepliesError(ClientError):
    """Some of the collected requests have no reply: `errors` says why, by request id."""

    def __init__(self, errors: Mapping[str, ClientError]) -> None:
        first = next(iter(errors.values()))
        super().__init__(f"{len(errors)} requests without a reply, the first: {first}")
        self.errors = dict(errors)

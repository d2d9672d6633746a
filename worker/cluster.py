"""Reaching the cluster: the connection arguments that every Kafka client of this worker shares."""

from __future__ import annotations

from typing import Any

from aiokafka.helpers import create_ssl_context

from worker.settings import KafkaSettings, SecuritySettings


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Arguments for aiokafka's consumer, producer and admin client; OSError for a certificate unread."""
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.client_id,
        "metadata_max_age_ms": settings.metadata_max_age_ms,
        **_security_options(settings.security),
    }


def _security_options(settings: SecuritySettings) -> dict[str, Any]:
    options: dict[str, Any] = {"security_protocol": settings.protocol}
    if settings.protocol.endswith("SSL"):
        context = create_ssl_context(
            cafile=_path(settings.ssl_cafile),
            certfile=_path(settings.ssl_certfile),
            keyfile=_path(settings.ssl_keyfile),
        )
        context.check_hostname = settings.ssl_check_hostname
        options["ssl_context"] = context
    if settings.protocol.startswith("SASL") and settings.sasl_password is not None:
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def _path(value: object) -> str | None:
    return None if value is None else str(value)

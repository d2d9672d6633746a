"""Reaching the cluster: the connection arguments that every Kafka client of this worker shares."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from aiokafka.helpers import create_ssl_context

from engine.errors import ConfigError
from worker.settings import KafkaSettings, SecuritySettings


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Arguments for aiokafka's consumer, producer and admin client; ConfigError names a bad certificate."""
    return {
        "bootstrap_servers": settings.bootstrap_servers,
        "client_id": settings.client_id,
        "metadata_max_age_ms": settings.metadata_max_age_ms,
        **_security_options(settings.security),
    }


def _security_options(settings: SecuritySettings) -> dict[str, Any]:
    options: dict[str, Any] = {"security_protocol": settings.protocol}
    if settings.protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.protocol.startswith("SASL") and settings.sasl_password is not None:
        options["sasl_mechanism"] = settings.sasl_mechanism
        options["sasl_plain_username"] = settings.sasl_username
        options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def _ssl_context(settings: SecuritySettings) -> ssl.SSLContext:
    for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
        path: Path | None = getattr(settings, key)
        if path is not None:
            try:
                path.open("rb").close()
            except OSError as error:
                raise ConfigError(f"kafka.security.{key}", str(path), error.strerror or repr(error)) from None
    key, value = "ssl_cafile", settings.ssl_cafile
    try:
        context: ssl.SSLContext = create_ssl_context(cafile=settings.ssl_cafile)
        if settings.ssl_certfile is not None:
            key, value = "ssl_certfile", settings.ssl_certfile
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    except ssl.SSLError as error:
        reason = f"is no usable certificate in PEM form, with its key: {error}"
        raise ConfigError(f"kafka.security.{key}", str(value), reason) from None
    context.check_hostname = settings.ssl_check_hostname
    return context

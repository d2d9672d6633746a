"""The worker's whole configuration: one YAML file, environment variables over it, every error at once.

`BOUNDGEN_KAFKA__BOOTSTRAP_SERVERS=broker:9092` overrides `kafka: {bootstrap_servers: ...}`; lists and maps
are given as JSON, null as null. Relative paths start at the folder of the file. Errors are `key = value:
reason` lines.
"""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from engine.mistakes import in_words
from worker.environment import DELIMITER, PREFIX, model_in, shown, strange_variables
from worker.settings import (
    DeadlineSettings,
    EngineSettings,
    HttpSettings,
    KafkaSettings,
    LimitSettings,
    LogSettings,
    PipelineSettings,
    QueueSettings,
    RedisSettings,
    ReplySettings,
    ShutdownSettings,
    WatchdogSettings,
)


class WorkerConfig(BaseSettings):
    """Everything that a worker process can be told."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        env_parse_none_str="null",
    )

    name: str = Field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", min_length=1)
    pipelines: tuple[PipelineSettings, ...]
    engine: EngineSettings = EngineSettings()
    kafka: KafkaSettings = KafkaSettings()
    replies: ReplySettings = ReplySettings()
    redis: RedisSettings = RedisSettings()
    deadlines: DeadlineSettings = DeadlineSettings()
    limits: LimitSettings = LimitSettings()
    queue: QueueSettings = QueueSettings()
    http: HttpSettings = HttpSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    logging: LogSettings = LogSettings()

    @field_validator("pipelines")
    @classmethod
    def _some_pipeline(cls, pipelines: tuple[PipelineSettings, ...]) -> tuple[PipelineSettings, ...]:
        if not pipelines:
            raise ValueError("a worker needs at least one pipeline")
        return pipelines

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file's values, which arrive as arguments."""
        return (env_settings, init_settings)


class WorkerConfigError(ValueError):
    """A configuration that cannot work; `problems` holds a `key = value: reason` line for each error."""

    def __init__(self, source: Path, problems: Sequence[str]) -> None:
        lines = [f"{source}: {len(problems)} errors", *problems]
        super().__init__("\n".join(lines) if len(problems) > 1 else f"{source}: {problems[0]}")
        self.problems = tuple(problems)


def read_worker_config(path: Path) -> WorkerConfig:
    """The file's settings under the environment's, checked; WorkerConfigError lists all that is wrong."""
    values = _read_yaml(path)
    strangers = list(strange_variables(WorkerConfig, os.environ))
    try:
        config = WorkerConfig(**values)
    except ValidationError as error:
        raise WorkerConfigError(path, strangers + [_line(each) for each in error.errors()]) from None
    except SettingsError as error:  # a variable that should hold JSON and does not
        raise WorkerConfigError(path, [*strangers, f"environment: {error}: {error.__cause__}"]) from None
    if strangers:
        raise WorkerConfigError(path, strangers)
    return _resolve_paths(config, path.resolve().parent)


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose maps may not say a thing twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except OSError as error:
        raise WorkerConfigError(path, [f"cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise WorkerConfigError(path, [f"is not UTF-8 text: {error}"]) from None
    except yaml.YAMLError as error:
        raise WorkerConfigError(path, [f"is not YAML: {' '.join(str(error).split())}"]) from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise WorkerConfigError(path, [f"{content!r:.80}: the file must be a map of sections"])
    return content


def _line(error: ErrorDetails) -> str:
    location, value, reason = error["loc"], error["input"], in_words(error)
    key = ".".join(str(part) for part in location) or "the whole file"
    if error["type"] == "missing":
        return f"{key}: required and not given"
    if error["type"] == "extra_forbidden":
        reason = f"no such setting{_suggest(str(location[-1]), _known_keys(location[:-1]))}"
    quoted = "" if isinstance(value, dict | BaseModel) else shown(key, value)
    return f"{key}{quoted}: {reason}"


def _known_keys(location: tuple[str | int, ...]) -> Sequence[str]:
    model: type[BaseModel] = WorkerConfig
    for part in location:
        field = model.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            model = model_in(field.annotation) or model
    return list(model.model_fields)


def _suggest(word: str, known: Sequence[str] | Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _resolve_paths(config: WorkerConfig, folder: Path) -> WorkerConfig:
    pipelines = tuple(
        each.model_copy(update={"config": folder / each.config.expanduser()}) for each in config.pipelines
    )
    artifacts = {name: folder / path.expanduser() for name, path in config.engine.artifacts.items()}
    engine = config.engine.model_copy(update={"artifacts": artifacts})
    security = config.kafka.security
    files = {"ssl_cafile": security.ssl_cafile, "ssl_certfile": security.ssl_certfile}
    files["ssl_keyfile"] = security.ssl_keyfile
    found = {key: folder / path.expanduser() for key, path in files.items() if path is not None}
    kafka = config.kafka.model_copy(update={"security": security.model_copy(update=found)})
    return config.model_copy(update={"pipelines": pipelines, "engine": engine, "kafka": kafka})

"""Imports a Celery app as ``celery -A`` does."""

from __future__ import annotations

import os
import sys
from typing import Any

from celery.app.utils import find_app  # type: ignore[import-untyped]

from headway.core.errors import ConfigError


def import_celery_app(path: str) -> Any:
    """Import an app and read its settings. Raises ``ConfigError``."""
    sys.path.insert(0, os.getcwd())  # As Celery's own commands do.
    try:
        app = find_app(path)
        app.conf.broker_url  # noqa: B018 - lets its settings be read
    except ConfigError:
        raise
    except Exception as problem:
        raise ConfigError(_message(path, problem)) from problem
    finally:
        sys.path.pop(0)
    return app


def load_all_tasks(app: Any, path: str) -> None:
    """Import the modules that a worker would import, and finalize the app. Raises ``ConfigError``."""
    sys.path.insert(0, os.getcwd())
    try:
        app.loader.import_default_modules()
        app.finalize()
    except Exception as problem:
        raise ConfigError(_message(path, problem)) from problem
    finally:
        sys.path.pop(0)


def _message(path: str, problem: Exception) -> str:
    return f"the Celery app {path} cannot be imported: {type(problem).__name__}: {problem}"

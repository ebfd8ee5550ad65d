"""Finds the Headway app of a Celery project: ``headway worker --celery proj`` loads ``…project:proj``."""

from __future__ import annotations

import os
import sys

from celery.app.utils import find_app  # type: ignore[import-untyped]

from headway.client.app import Headway
from headway.core.errors import ConfigError
from headway.integrations.celery.adoption.adoption import Adoption, adoption_of
from headway.integrations.celery.adoption.schedule import declare_crons

_COLON = "/"  # In place of the colon of ``module:app``, because the path of an app has only one.


def app_path(project: str) -> str:
    """Return the path by which workers load the Headway app of a project."""
    return f"{__name__}:{project.replace(':', _COLON)}"


def load_project(project: str) -> Adoption:
    """Import a Celery project as ``celery -A`` does and return its adoption. Raises ``ConfigError``."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        app = find_app(project)
        app.loader.import_default_modules()
        app.finalize()
    except ConfigError:
        raise
    except Exception as problem:
        message = f"the Celery app {project} cannot be imported: {type(problem).__name__}: {problem}"
        raise ConfigError(message) from problem
    return adoption_of(app)


def __getattr__(name: str) -> Headway:
    if name.startswith("__"):
        raise AttributeError(name)
    adoption = load_project(name.replace(_COLON, ":"))
    for task in adoption.registered():
        adoption.task(task)
    declare_crons(adoption)
    adoption.headway.offer_queues()
    return adoption.headway

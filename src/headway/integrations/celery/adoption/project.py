"""Finds the Headway app of a Celery project: ``headway worker --celery proj`` loads ``…project:proj``."""

from __future__ import annotations

from headway.client.app import Headway
from headway.integrations.celery.adoption.adoption import Adoption, adoption_of
from headway.integrations.celery.adoption.beat_tables import declare_sender, tables_installed
from headway.integrations.celery.adoption.schedule import declare_crons
from headway.integrations.celery.app_import import import_celery_app, load_all_tasks

_COLON = "/"  # In place of the colon of ``module:app``, because the path of an app has only one.


def app_path(project: str) -> str:
    """Return the path by which workers load the Headway app of a project."""
    return f"{__name__}:{project.replace(':', _COLON)}"


def load_project(project: str) -> Adoption:
    """Import a Celery project as ``celery -A`` does and return its adoption. Raises ``ConfigError``."""
    app = import_celery_app(project)
    load_all_tasks(app, project)
    return adoption_of(app)


def __getattr__(name: str) -> Headway:
    if name.startswith("__"):
        raise AttributeError(name)
    adoption = load_project(name.replace(_COLON, ":"))
    for task in adoption.registered():
        adoption.task(task)
    declare_crons(adoption)
    if tables_installed():
        declare_sender(adoption)
    adoption.headway.offer_queues()
    return adoption.headway

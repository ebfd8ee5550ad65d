"""Finds an app by its path: ``module:attribute`` or ``file.py:attribute``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from headway.client.app import Headway
from headway.core.errors import ConfigError
from headway.core.policy.document import Policy
from headway.core.suggest import did_you_mean


def load_app(path: str, folder: str | None = None) -> Headway:
    """Import and return an app. Without an attribute, take ``app`` or the only app in the module.

    Raises ``ConfigError`` if there is no such app. An error inside the module is raised unchanged.
    """
    folder = folder or os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name, _, attribute = path.rpartition(":") if ":" in path else (path, "", "")
    module = _load_module(name, path)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Headway)}
    if attribute:
        value = getattr(module, attribute, None)
        if isinstance(value, Headway):
            return value
        hint = did_you_mean(attribute, list(found)) or (f"; it has {', '.join(found)}" if found else "")
        raise ConfigError(f"{name} has no Headway app called {attribute!r}{hint}", app=path)
    if "app" in found:
        return found["app"]
    if len(set(map(id, found.values()))) == 1:
        return next(iter(found.values()))
    what = f"several apps ({', '.join(found)})" if found else "no Headway app"
    raise ConfigError(f"{name} holds {what}; write {name}:name", app=path)


def policy_file(app: Headway) -> tuple[Policy, str] | None:
    """Return the policy from the app's policy file and the path of that file, or None."""
    path = app.settings.policy
    return None if app.file_policy is None or path is None else (app.file_policy, path)


def path_of(app: Headway) -> str | None:
    """Return the path by which another process can load an app of this process, or None."""
    for module_name, module in list(sys.modules.items()):
        for attribute, value in list(getattr(module, "__dict__", {}).items()):
            if value is not app:
                continue
            if module_name != "__main__":
                return f"{module_name}:{attribute}"
            file = getattr(module, "__file__", None)
            if file and file.endswith(".py"):
                return f"{Path(file).resolve()}:{attribute}"
    return None


def _load_module(name: str, path: str) -> ModuleType:
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as problem:
            if problem.name is not None and (name == problem.name or name.startswith(f"{problem.name}.")):
                raise ConfigError(
                    f"no module {name!r} for the app {path!r}; it is looked for in {os.getcwd()} and on sys.path",
                    app=path,
                ) from None
            raise
    file = Path(name).resolve()
    if not file.is_file():
        raise ConfigError(f"no file {file} for the app {path!r}", app=path)
    sys.path.insert(0, str(file.parent))
    # Not "__main__", so that code under a script's ``__main__`` guard does not run.
    spec = importlib.util.spec_from_file_location("__headway_main__", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} cannot be imported", app=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["__headway_main__"] = module
    spec.loader.exec_module(module)
    return module

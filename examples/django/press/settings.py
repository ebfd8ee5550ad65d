"""Settings of the example. The database is PostgreSQL if the usual PG* variables name a server, else an SQLite file."""

from __future__ import annotations

import os

SECRET_KEY = "an example, not a secret"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "press.urls"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "headway.integrations.django",
    "press",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "HOST": os.environ.get("PGHOST", ""),
    "PORT": os.environ.get("PGPORT", "5432"),
    "USER": os.environ.get("PGUSER", "postgres"),
    "PASSWORD": os.environ.get("PGPASSWORD", ""),
    "NAME": os.environ.get("PGDATABASE", "press"),
}
SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": os.environ.get("PRESS_FILE", "press.sqlite3"),
    "OPTIONS": {"transaction_mode": "IMMEDIATE"},
}
DATABASES = {"default": POSTGRES if POSTGRES["HOST"] else SQLITE}

IOQUEUE_MAX_CONCURRENCY = 2  # So that jobs have to wait, and the page has something to show.

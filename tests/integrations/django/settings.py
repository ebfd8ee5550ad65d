"""A project for the tests: an app with a model and tasks, the admin, and jobs in the database that a test chose."""

from __future__ import annotations

import json
import os

import django

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
SECRET_KEY = "tests"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.integrations.django.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ALLOWED_HOSTS = ["*"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *([] if django.VERSION[0] >= 6 else ["django_tasks"]),
    "headway.integrations.django",
    "tests.integrations.django.shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
DATABASES = {
    "default": json.loads(
        os.environ.get("DJANGO_TESTS_DATABASE", '{"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}')
    ),
    "other": {"ENGINE": "django.db.backends.dummy"},
}
HEADWAY = "headway.integrations.django.HeadwayBackend"
TASKS = {
    "default": {"BACKEND": HEADWAY, "QUEUES": ["default", "mail", "low"], "OPTIONS": {"queues": {"mail": "low"}}},
    "retrying": {"BACKEND": HEADWAY, "OPTIONS": {"max_retries": 2}},
    "hasty": {"BACKEND": HEADWAY, "OPTIONS": {"timeout": 0.2}},
}

# Quick, for the tests: what must be waited for is short.
IOQUEUE_MAX_CONCURRENCY = 4
IOQUEUE_POLL_INTERVAL_SEC = float(os.environ.get("DJANGO_TESTS_POLL", "0.5"))
IOQUEUE_VISIBILITY_TIMEOUT_SEC = 3
IOQUEUE_GRACE_SEC = 10

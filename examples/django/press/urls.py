"""The page, the addresses that it calls, and the admin."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from press import views

urlpatterns = [
    path("", views.index, name="index"),
    path("order/", views.order, name="order"),
    path("jobs/", views.jobs, name="jobs"),
    path("admin/", admin.site.urls),
]

"""The table of orders."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies: ClassVar = []

    operations: ClassVar = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=100)),
                ("invoice", models.CharField(blank=True, max_length=100)),
                ("attempts", models.IntegerField(default=0)),
                ("mailed", models.BooleanField(default=False)),
                ("invoiced_at", models.DateTimeField(null=True)),
            ],
        ),
    ]

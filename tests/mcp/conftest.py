from __future__ import annotations

from tests.client.conftest import repo as repo

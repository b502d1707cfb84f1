"""More examples for those who have the time: pytest tests/unit/run --hypothesis-profile=long"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("long", deadline=None, max_examples=2500)

"""Where a user's own state is kept: what platformdirs says, without the time that it takes to load."""

from __future__ import annotations

import platformdirs
import pytest

from agentos.store.private_files import user_state_folder


@pytest.mark.parametrize("home", ["/home/somebody", "not/absolute"])
@pytest.mark.parametrize("asked", [None, "", "  ", "not/absolute", "/var/state", "~/state"])
def test_it_is_where_platformdirs_has_it(monkeypatch: pytest.MonkeyPatch, asked: str | None, home: str) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if asked is not None:
        monkeypatch.setenv("XDG_STATE_HOME", asked)
    assert user_state_folder() == platformdirs.user_state_path("agentos")
    assert user_state_folder().is_absolute()

"""Widgets in a batch run."""

import pytest


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """The alt texts of what a batch run shows from now on."""
    shown = []
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    monkeypatch.setattr("lessons_lib.widgets.controls.display", lambda figure, alt: shown.append(alt))
    return shown

"""The browser that a launch names is the one that its processes start."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from verl_pivot.browser.settings import PATH_VARIABLE, find_browser, use_browser_of
from verl_pivot.errors import ConfigError


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "chrome"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("section", [{}, {"browser": {"path": ""}}, {"browser": {"path": None}}])
def test_a_launch_that_names_no_browser_leaves_the_variable_as_it_is(
    section: dict[str, object], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(program))

    use_browser_of(OmegaConf.create(section))

    assert find_browser() == program


def test_the_browser_of_a_launch_is_found_in_its_processes(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, "another")

    use_browser_of(OmegaConf.create({"browser": {"path": str(program)}}))

    assert find_browser() == program


def test_a_browser_that_is_not_there_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATH_VARIABLE, "")

    use_browser_of(OmegaConf.create({"browser": {"path": "/opt/none"}}))

    with pytest.raises(ConfigError, match="the browser '/opt/none' was not found: run `apt-get install"):
        find_browser()

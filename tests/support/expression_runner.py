"""The runner of the verifier `code`, loaded as a module, so that tests can call its functions."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from verl_pivot.verifiers import runners
from verl_pivot.verifiers.code_values import MAX_BYTES


def load_runner(folder: Path) -> Any:
    """The runner's module, loaded in a folder with an empty plan."""
    (folder / "plan.json").write_text(json.dumps({"code": "", "checks": [], "max_bytes": MAX_BYTES}))
    path = Path(str(runners.__file__)).with_name("call_expressions.py")
    spec = importlib.util.spec_from_file_location("call_expressions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        spec.loader.exec_module(module)
    return module

"""Folders of the host that programs of one language may read, and no others."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import KINDS, Kind, Service, start_service
from verl_pivot.errors import ConfigError
from verl_pivot.sandbox.bubblewrap.python_view import PythonView
from verl_pivot.sandbox.service.languages import LanguageTable, load_languages

VIEW = PythonView(executable="/venv/bin/python", bases=(Path("/opt/py"),), environment=None, site_packages=())
PACKAGE = "VALUE = 41\n"
YAML = """
python:
  folders: {%(folder)s/words: /data/words, %(folder)s/packages: /data/packages}
  import_from: [/data/packages]
  warm: {shown_package: "import shown_package; shown_package.VALUE += 1"}
bash:
  folders: {%(folder)s/words: /data/words}
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Folder of the host that every user may read, with `words` and `packages`."""
    made = Path(tempfile.mkdtemp(prefix="shown-", dir="/var/tmp"))
    (made / "words").mkdir()
    (made / "words/list.txt").write_text("one two\n")
    (made / "words/out").symlink_to(made / "packages")
    (made / "packages/shown_package").mkdir(parents=True)
    (made / "packages/shown_package/__init__.py").write_text(PACKAGE)
    (made / "languages.yaml").write_text(YAML % {"folder": made})
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture(scope="module")
def showing(folder: Path, kind: Kind) -> Iterator[Service]:
    started = start_service(kind, "--languages", str(folder / "languages.yaml"), lanes=1)
    yield started
    started.stop()


@needs_sandbox
def test_programs_read_the_folders_of_their_language_and_change_nothing(showing: Service) -> None:
    code = """
import os, subprocess, sys
print(open("/data/words/list.txt").read().split(), sys.path[:2])
for path in ("/data/words/new", "/data/new"):
    try:
        open(path, "w")
    except OSError as error:
        print(error.strerror)
print(os.path.exists("/data/words/out"))
run = [sys.executable, "-c", "import shown_package; print(shown_package.__file__)"]
print(subprocess.run(run, capture_output=True, text=True).stdout, end="")
"""
    assert showing.output(code).splitlines() == [
        "['one', 'two'] ['/tmp', '/data/packages']",
        "Read-only file system",
        "Read-only file system",
        "False",
        "/data/packages/shown_package/__init__.py",
    ]


@needs_sandbox
def test_programs_of_another_language_see_neither_its_folders_nor_its_variables(showing: Service) -> None:
    show = 'cat /data/words/list.txt; ls -A /data/packages 2>/dev/null | wc -l; echo "[$PYTHONPATH]"'

    assert showing.output(show, language="bash") == "one two\n0\n[]\n"
    assert showing.run("ls /proc/1/root/data/packages/shown_package", language="bash").exit_code != 0


@needs_sandbox
def test_a_package_of_such_a_folder_is_imported_and_warmed_like_an_installed_one(showing: Service, kind: Kind) -> None:
    value = 41 if kind is Kind.BWRAP_EXEC else 42  # bwrap_exec has no warm-ups

    assert showing.output("import shown_package\nprint(shown_package.VALUE)") == f"{value}\n"


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], LanguageTable]:
    tmp_path.chmod(0o755)
    for name in ("a", "b", "closed"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "closed").chmod(0o700)

    def loaded(yaml: str) -> LanguageTable:
        (tmp_path / "languages.yaml").write_text(yaml.replace("HOST", str(tmp_path)))
        return load_languages(tmp_path / "languages.yaml", python=VIEW)

    return loaded


def test_folders_that_languages_share_are_mounted_once(load: Callable[[str], LanguageTable], tmp_path: Path) -> None:
    table = load("bash: {folders: {HOST/a: /data}}\npython: {folders: {HOST/a: /data, HOST/b: /words}}")

    assert table.folders == {"/data": tmp_path / "a", "/words": tmp_path / "b"}
    assert table.get("bash").places == ("/data",)


@pytest.mark.parametrize(
    ("yaml", "sentence"),
    [
        ("bash: {folders: {HOST/none: /data}}", "bash.folders: .*/none is not a folder that uid .* can see"),
        ("bash: {folders: {HOST/languages.yaml: /data}}", "bash.folders: .*/languages.yaml is not a folder"),
        ("bash: {folders: {words: /data}}", "words must be an absolute path of the host"),
        ("bash: {folders: {HOST/closed: /data}}", "must be readable for all users.*: chmod -R o\\+rX"),
        ("bash: {folders: {HOST/a: data}}", "'data' must be an absolute path in the pod"),
        ("bash: {folders: {HOST/a: /}}", "'/' must be an absolute path in the pod"),
        ("bash: {folders: {HOST/a: //data}}", "'//data' must be an absolute path in the pod"),
        ("bash: {folders: {HOST/a: /data/../etc}}", "must be an absolute path in the pod"),
        ("bash: {folders: {HOST/a: /usr/share/words}}", "/usr/share/words overlaps /usr"),
        ("bash: {folders: {HOST/a: /tmp}}", "/tmp overlaps /tmp"),
        ("bash: {folders: {HOST/a: /venv/lib}}", "/venv/lib overlaps /venv"),
        ("bash: {folders: {HOST/a: /opt}}", "/opt overlaps /opt/py"),
        ("bash: {folders: {HOST/a: /opt/py/lib}}", "/opt/py/lib overlaps /opt/py"),
        ("bash: {folders: {HOST/a: /data, HOST/b: /data/b}}", "folders: /data/b and /data overlap"),
        ("bash: {folders: {HOST/a: /data}}\npython: {folders: {HOST/b: /data}}", "/data and /data overlap"),
        ("bash: {folders: {HOST/a: 3}}", "bash.folders.*a"),
        ("bash: {folders: {HOST/a: /data}, import_from: [/data]}", "import_from works only for Python"),
        ("python: {folders: {HOST/a: '/a:b'}, import_from: ['/a:b']}", "/a:b has a colon, at which PYTHONPATH"),
        ("python: {folders: {HOST/a: /data}, import_from: [/words]}", "/words is not below a path that `folders`"),
    ],
)
def test_a_folder_that_cannot_be_shown_is_refused_with_its_place(
    load: Callable[[str], LanguageTable], yaml: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(yaml)

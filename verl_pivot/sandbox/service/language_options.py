"""Languages in YAML, as pydantic models: the fields of each, their ranges, and which fields exclude each other."""

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, model_validator

from verl_pivot.sandbox.bubblewrap.python_view import is_below
from verl_pivot.sandbox.execution import MIB
from verl_pivot.validation import Options

_Word = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]+$")]
_Command = Annotated[tuple[_Word, ...], Field(min_length=1)]
ZygoteChoice: TypeAlias = Literal["auto", "bare", "standard", "full"]
"""Zygote that programs are forked from, named after its imports; "auto" chooses one by each program's imports."""
MAX_STARTUP_LENGTH = 16 * 1024
"""Most characters of the cell that runs before all sessions, which is passed on a command line."""


class _StrictOptions(Options):
    """Options that take no value of another type: "1" is not a number."""

    model_config = ConfigDict(strict=True)


class Overhead(_StrictOptions):
    """Resources that a language's runtime itself uses, added to a program's limits."""

    memory_bytes: Annotated[int, Field(ge=0, le=4096 * MIB)] = 16 * MIB
    num_processes: Annotated[int, Field(ge=0, le=256)] = 0
    num_open_files: Annotated[int, Field(ge=0, le=1024)] = 0


class CompileOptions(_StrictOptions):
    """Limits of the compiler; sandbox.execution.Limits has the ranges."""

    wall_seconds: float = 15.0
    cpu_seconds: int = 30
    memory_bytes: int = 2048 * MIB
    num_processes: int = 64


_ModuleName = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]


def _compiled(code: str) -> str:
    """Check that a warm-up is Python; raises ValueError with the line if it is not."""
    try:
        compile(code, "warm-up", "exec", dont_inherit=True)
    except SyntaxError as error:
        raise ValueError(f"is not valid Python: {error.msg}, line {error.lineno}") from error
    return code


class SessionOptions(_StrictOptions):
    """How sessions begin."""

    startup: Annotated[str, AfterValidator(_compiled), Field(max_length=MAX_STARTUP_LENGTH)] = ""
    """Cell that runs once, before all sessions; each session begins with the names that it defines."""
    prewarm: Annotated[int, Field(ge=0, le=1024)] = 0
    """Number of interpreters that a service makes before sessions ask for them."""


class LanguageOptions(_StrictOptions):
    """One language in the YAML; the fields have the same meaning as in Language."""

    file: str
    run: Annotated[_Command, Field(strict=False)]
    compile: Annotated[_Command, Field(strict=False)] | None = None
    zygote: ZygoteChoice | None = None
    warm: dict[_ModuleName, Annotated[str, AfterValidator(_compiled)] | None] | None = None
    folders: dict[_Word, _Word] = Field(default_factory=dict)
    devices: Annotated[tuple[_Word, ...], Field(strict=False)] = ()
    import_from: Annotated[tuple[_Word, ...], Field(strict=False)] = ()
    session: SessionOptions = SessionOptions()
    overhead: Overhead = Overhead()
    compile_limits: CompileOptions = CompileOptions()

    @model_validator(mode="after")
    def _check_warm(self) -> "LanguageOptions":
        if self.warm and self.zygote is None:
            raise ValueError("warm needs a zygote, which runs the warm-ups before it forks: set zygote, or remove warm")
        return self

    @model_validator(mode="after")
    def _check_import_from(self) -> "LanguageOptions":
        if self.import_from and self.zygote is None:
            raise ValueError(
                "import_from works only for Python; for another language set a variable, as in "
                "`run: [env, NODE_PATH=...]`"
            )
        for path in self.import_from:
            if ":" in path:
                raise ValueError(f"import_from: {path} has a colon, at which PYTHONPATH would be split")
            if not any(is_below(Path(path), Path(place)) for place in self.folders.values()):
                raise ValueError(f"import_from: {path} is not below a path that `folders` shows in the pod")
        return self


LANGUAGES_FILE = TypeAdapter(dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_+#.-]{0,31}$")], LanguageOptions])

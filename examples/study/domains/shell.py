"""Domain `shell`: tasks of moving, removing or reading files of a small project, with the tool `bash`."""

import ast
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from examples.quickstart.shop import ITEMS, is_held_out
from examples.study.domains.names import draw_names
from examples.study.domains.protocol import Clerk, StudyTask, act, say
from verl_pivot.errors import ToolFailureError
from verl_pivot.sandbox.execution import MIB, Limits, Result, Status
from verl_pivot.tools.code_tools import Bash, CodeToolOptions
from verl_pivot.tools.contract import Observation
from verl_pivot.tools.tool_response import render_tool_response
from verl_pivot.tools.workspace import Workspace
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall

SYSTEM = "Work in the shell."
FOLDERS: Final = ("src", "docs", "data")
MOVED_TO: Final = "old"
_FILES_OF_A_FOLDER = 2
_SEEN: Final = {"remove": 2, "move": 4, "size_next": 2, "remove_two": 1}
_UNSEEN: Final = {"move_remove": 1, "remove_next": 2}
_ASK: Final = {
    "remove": ("Trash the file of {name}.", "Erase the file of {name}."),
    "move": (f"Shift the file of {{name}} to {MOVED_TO}.", f"Put the file of {{name}} into {MOVED_TO}."),
    "remove_next": ("Trash the next file of {name}.", "Erase the next file of {name}."),
    "size_next": ("What is the size in the next file of {name}?", "Tell me the size in the next file of {name}."),
}
"""{job: wordings of its request}; the next file of a person is the one that the person's file names as `next`."""
_FIND: Final = ("grep -rl {}", "grep -lr {}")
_READ: Final = ("cat {}", "head {}")
_REMOVE: Final = ("rm {}", "rm -f {}")
_MOVE: Final = ("mv {} {}", "mv {} {}/")
_COPY: Final = "cp {} {}"
_DONE: Final = ("Done.", "It is done.")
_ANSWERS: Final = ("It is {}.", "That is {}.")
_SNAPSHOT = (
    "{str(path): path.open(errors='replace').read(1000)"
    " for path in sorted(__import__('pathlib').Path('.').rglob('*'))[:100] if path.is_file()}"
)
"""Python expression whose value is {path: beginning of the text} of the files in the folder."""
_LIMITS = Limits(wall_seconds=10.0, cpu_seconds=10, memory_bytes=1024 * MIB)
_BASH = Bash(CodeToolOptions(tell_seconds=False))


class ShellDomain:
    """Tasks in a project of six files in three folders; each file names its owner and the next file."""

    name = "shell"
    tools: Sequence[JsonObject] = (_BASH.schema,)
    fault = "It copies a file that is to be moved, and so leaves the old one where it was."

    def verifier(self, task: StudyTask) -> tuple[str, JsonObject]:
        """The verifier `shell` runs each command in the project as it is at the beginning, and `qa` judges the answer.

        All commands of the expert depend on the project as it is at the beginning.
        """
        commands: JsonObject = {
            "argument": "bash.command",
            "mode": "execution",
            "setup": _setup(task.metadata),
            "num_perturbed": 1,
        }
        wanted = task.metadata["answer"]
        answers: list[Json] = [*_DONE] if wanted is None else [form.format(wanted) for form in _ANSWERS]
        answer: JsonObject = {"place": "all", "answers": answers}
        parts: list[Json] = [{"name": "shell", "options": commands}, {"name": "qa", "options": answer}]
        return "first_decided", {"verifiers": parts}

    def make_task(self, seed: int, *, held_out: bool, every_family: bool = False) -> StudyTask:
        rng = random.Random(f"study-shell-{seed}-{held_out}")
        weights = {**_SEEN, **_UNSEEN} if held_out or every_family else _SEEN
        family = rng.choices(list(weights), list(weights.values()))[0]
        owners, files = _project(rng, held_out)
        jobs = {"remove_two": ("remove", "remove"), "move_remove": ("move", "remove")}.get(family, (family,))
        names = rng.sample(list(owners), len(jobs))
        chains = [_chain(owners[name], files) if job.endswith("_next") else [owners[name]]
                  for job, name in zip(jobs, names, strict=True)]  # fmt: skip
        requests = [rng.choice(_ASK[job]).format(name=name) for job, name in zip(jobs, names, strict=True)]
        return StudyTask(
            id=f"shell-{family}-{seed}-{held_out}",
            domain=self.name,
            family=family,
            system=SYSTEM,
            request=" ".join(requests),
            metadata={
                "domain": self.name,
                "files": {**files},
                "name": names[0],
                "jobs": [[job.removesuffix("_next"), name, *paths]
                         for job, name, paths in zip(jobs, names, chains, strict=True)],
                "answer": _size(files[chains[0][-1]]) if family == "size_next" else None,
            },
        )  # fmt: skip

    def plan(self, task: StudyTask, clerk: Clerk) -> list[Message]:
        """For each job, find the file by its owner, read it and maybe the next file, and do the job; then answer."""
        actions: list[Message] = []
        for job, name, *paths in _jobs(task.metadata):
            commands = [clerk.way(*_FIND).format(name), *(clerk.way(*_READ).format(path) for path in paths)]
            if job == "remove":
                commands.append(clerk.way(*_REMOVE).format(paths[-1]))
            elif job == "move":
                form = _COPY if clerk.errs() else clerk.way(*_MOVE)
                commands.append(form.format(paths[-1], MOVED_TO))
            actions += [act("bash", command=command) for command in commands]
        wanted = task.metadata["answer"]
        return [*actions, say(clerk.way(*_DONE) if wanted is None else clerk.way(*_ANSWERS).format(wanted))]

    def open(self, metadata: JsonObject, *, trusted: bool = False) -> "ShellWorld | TrustedShellWorld":
        return TrustedShellWorld(metadata) if trusted else ShellWorld(metadata)


class _ShellState:
    """State of a project after the commands so far: its files, and the results of the commands."""

    def __init__(self, metadata: JsonObject) -> None:
        self._metadata = metadata
        self._files: Json = _files(metadata)
        """{path: text} after the last command; None if they could not be read."""
        self._results: tuple[str, ...] = ()
        """Results of the commands so far; an answer that none of them tells is a guess and does not count."""

    def passed(self, answer: Message) -> bool:
        wanted = self._metadata["answer"]
        accepted = _DONE if wanted is None else [form.format(wanted) for form in _ANSWERS]
        was_read = wanted is None or any(f"size {wanted}" in each for each in self._results)
        is_answer = answer.role is Role.ASSISTANT and not answer.tool_calls and answer.content in accepted
        return is_answer and was_read and self._files == _fulfilled(self._metadata)

    def state(self) -> Json:
        return self._files


class ShellWorld(_ShellState):
    """The project of one task in a session of the sandbox, which the first command opens."""

    def __init__(self, metadata: JsonObject, commands: Sequence[str] = ()) -> None:
        super().__init__(metadata)
        self._workspace = Workspace({})
        self._commands = list(commands)
        """Commands so far."""
        self._is_open = False

    async def call(self, call: ToolCall) -> Observation:
        if not self._is_open:
            await self._open()
        self._commands.append(str(call.arguments["command"]))
        observation = await _BASH.call(call.arguments, self._workspace)
        self._files = _read_snapshot(await self._workspace.run_cell(f"__import__('json').dumps({_SNAPSHOT})", _LIMITS))
        self._results = (*self._results, observation.text)
        return observation

    async def _open(self) -> None:
        """Make the project, and run the commands of the world of which this one is a fork."""
        made = await _BASH.call({"command": _setup(self._metadata)}, self._workspace)
        if made.error is not None:
            raise ToolFailureError(f"the project of the task could not be made: {made.text}")
        for command in self._commands:
            await _BASH.call({"command": command}, self._workspace)
        self._is_open = True

    def fork(self) -> "ShellWorld":
        """A copy that runs the commands so far before its first one."""
        twin = ShellWorld(self._metadata, self._commands)
        twin._files, twin._results = self._files, self._results
        return twin

    async def close(self) -> None:
        await self._workspace.close()


class TrustedShellWorld(_ShellState):
    """The project without a shell: this class imitates the few commands that the clerk uses."""

    async def call(self, call: ToolCall) -> Observation:
        printed = self._run(str(call.arguments["command"]).split())
        text = render_tool_response(Result(status=Status.OK, stdout=printed), with_time=False)
        self._results = (*self._results, text)
        return Observation(text)

    def _run(self, words: Sequence[str]) -> str:
        """Run a command of the clerk; returns what it prints."""
        files = _files({"files": self._files})
        match words:
            case ["grep", _, name]:
                return "\n".join(path for path, text in files.items() if name in str(text))
            case ["cat" | "head", path]:
                return str(files[path])
            case ["rm", *_, path]:
                self._files = {each: text for each, text in files.items() if each != path}
            case ["cp" | "mv" as command, path, folder]:
                kept = {each: text for each, text in files.items() if each != path or command == "cp"}
                self._files = {**kept, f"{folder.rstrip('/')}/{Path(path).name}": files[path]}
            case _:
                raise AssertionError(words)
        return ""

    def fork(self) -> "TrustedShellWorld":
        twin = TrustedShellWorld(self._metadata)
        twin._files, twin._results = self._files, self._results
        return twin

    async def close(self) -> None:
        """Do nothing, since nothing is open."""


def _read_snapshot(result: Result) -> Json:
    """Files of a project; None if they cannot be read, or if a command has forged the value of the cell."""
    if result.status is not Status.OK:
        return None
    try:
        files: Json = json.loads(ast.literal_eval(result.value or ""))
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    return files


def _project(rng: random.Random, held_out: bool) -> tuple[dict[str, str], dict[str, str]]:
    """{owner: path} and {path: text} of a project's files."""
    number = _FILES_OF_A_FOLDER * len(FOLDERS)
    sizes = [size for size in range(10, 100) if is_held_out(size) is held_out]
    paths = sorted(f"{FOLDERS[i % len(FOLDERS)]}/{item}.txt" for i, item in enumerate(rng.sample(ITEMS, number)))
    names = draw_names(rng, number, held_out=held_out)
    shift = rng.randint(1, number - 1)
    texts = [
        f"owner {name}\nsize {size}\nnext {paths[(position + shift) % number]}\n"
        for position, (name, size) in enumerate(zip(names, rng.sample(sizes, number), strict=True))
    ]
    return dict(zip(names, paths, strict=True)), dict(zip(paths, texts, strict=True))


def _chain(path: str, files: Mapping[str, str]) -> list[str]:
    """Paths of a file and of the next one."""
    return [path, files[path].split()[-1]]


def _size(text: str) -> str:
    return text.split()[3]


def _files(metadata: Mapping[str, Json]) -> dict[str, Json]:
    files = metadata["files"]
    assert isinstance(files, dict), metadata
    return files


def _jobs(metadata: Mapping[str, Json]) -> list[list[str]]:
    """Jobs of a task, each as [job, name, *paths of the files to read]; the job is about the last path."""
    jobs = metadata["jobs"]
    assert isinstance(jobs, list), metadata
    return [list(map(str, job)) for job in jobs if isinstance(job, list)]


def _setup(metadata: Mapping[str, Json]) -> str:
    """Script that makes the project."""
    folders = " ".join((*FOLDERS, MOVED_TO))
    lines = [f"printf '{_escaped(str(text))}' > {path}" for path, text in _files(metadata).items()]
    return "\n".join([f"mkdir {folders}", *lines])


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n")


def _fulfilled(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """Files of the project after all jobs are done."""
    files = dict(_files(metadata))
    for job, _, *paths in _jobs(metadata):
        if job in ("move", "remove"):
            text = files.pop(paths[-1])
            if job == "move":
                files[f"{MOVED_TO}/{Path(paths[-1]).name}"] = text
    return files

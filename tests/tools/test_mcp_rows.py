"""Real MCP servers that start from the rows of their trajectories: states, words, files, refusals."""

import asyncio
import json
import sys
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.support.chat_server import MODEL, chat_server
from tests.support.chat_server import said as said_by_model
from tests.tools.test_mcp_servers import HOSTILE, SHOP, ask, hostile, serving, told, toolset
from verl_pivot.cli import app
from verl_pivot.data.json_values import encode_json
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.tools.toolset import Toolset, load_toolset
from verl_pivot.types import Json, JsonObject

pytestmark = pytest.mark.heavy  # each test starts processes
SEED = "--seed={metadata.seed}"


def row(**metadata: Json) -> JsonObject:
    return {"metadata": encode_json(metadata)}


def words(*arguments: str, **options: Json) -> JsonObject:
    """A server that tells its arguments and variables, and the contents of the files that its arguments name."""
    return hostile("words", *arguments, **options)


async def said(made: Toolset, **metadata: Json) -> list[Json]:
    async with made.open(row(**metadata)) as tools:
        answer: list[Json] = json.loads(await told(tools, "t"))
        return answer


async def test_each_trajectory_has_a_server_that_starts_from_its_row() -> None:
    entry: JsonObject = {
        "mcp": {"command": [sys.executable, SHOP, "--stock", "{metadata.stock}"]},
        "listed_with": {"stock": {"tea": 0}},
    }
    made = toolset(entry)
    async with made.open(row(stock={"tea": 5})) as first, made.open(row(stock={"salt": 1, "tea": 2})) as second:
        answers = await asyncio.gather(
            told(first, "order", item="tea", amount=3),
            told(second, "order", item="salt"),
            told(second, "left", item="tea"),
        )
        refused = await ask(first, "order", item="salt")

    assert [*answers] == ["2", "0", "2"]
    assert refused.observation is not None
    assert "there is no salt left" in refused.observation.text


@pytest.mark.parametrize("sandbox", [True, False], ids=["sandboxed", "trusted"])
async def test_a_value_of_a_row_is_one_word_that_no_shell_reads(sandbox: bool) -> None:
    made = toolset(
        words(SEED, "{metadata.seed}", variables=["TASK={metadata.seed}"], listed_with={"seed": 0}, sandbox=sandbox)
    )
    hostile_text = "1 --other 'x' $HOME `id`; {folder}\n{metadata.seed}"

    arguments, variables, _ = await said(made, seed=hostile_text)

    assert arguments == [f"--seed={hostile_text}", hostile_text]
    assert variables == {"TASK": hostile_text}


async def test_a_row_names_a_file_below_the_folders_of_its_argument_and_none_beside_them(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "tea.txt").write_text("order tea")
    (tmp_path / "key").write_text("secret")
    made = toolset(words(f"{tmp_path}/tasks/{{metadata.task}}", "{metadata.task}", listed_with={"task": "tea.txt"}))

    *_, read = await said(made, task="tea.txt")
    *_, above = await said(made, task="../key")
    *_, elsewhere = await said(made, task=str(tmp_path / "key"))

    assert read == ["order tea", None]
    assert above == elsewhere == [None, None]


async def test_each_row_names_the_folder_that_its_server_gets_a_copy_of(tmp_path: Path) -> None:
    for name in ("tea", "salt"):
        (tmp_path / "shops" / name).mkdir(parents=True)
        (tmp_path / "shops" / name / "stock").write_text(f"{name}: 3")
    (tmp_path / "key").mkdir()
    shops = f"{tmp_path}/shops/{{metadata.shop}}"
    made = toolset(
        words("{folder}/stock", folder_from=shops, variables=["AT={folder}"], listed_with={"shop": "tea"}),
    )

    assert await said(made, shop="salt") == [["/folder/stock"], {"AT": "/folder"}, ["salt: 3"]]
    for wrong in ("../key", "", ".", "gone", str(tmp_path / "key")):
        with pytest.raises(DataError, match="which is not a folder below"):
            made.open(row(shop=wrong))


async def test_a_server_that_ended_before_a_change_starts_again_from_the_same_row() -> None:
    entry: JsonObject = {
        "mcp": {"command": [sys.executable, SHOP, "--stock", "{metadata.stock}"]},
        "listed_with": {"stock": {}},
    }
    made = toolset(entry)
    async with made.open(row(stock={"tea": 4})) as tools:
        assert await told(tools, "left", item="tea") == "4"
        holder = tools.toolbox.workspace.held(made.servers[0])
        await holder._session.close()  # type: ignore[attr-defined]  # as if its process had been killed
        assert await told(tools, "left", item="tea") == "4"


async def test_each_trajectory_asks_at_the_address_that_its_row_completes() -> None:
    serving_one = serving()
    address = next(serving_one).replace("/mcp", "/{metadata.shop}")
    made = toolset({"mcp": {"url": address}, "listed_with": {"shop": "mcp"}})
    async with made.open(row(shop="mcp")) as tools, made.open(row(shop="mcp?x/..")) as elsewhere:
        found = await told(tools, "left", item="tea")
        missing = await ask(elsewhere, "left", item="tea")
    assert next(serving_one, None) is None

    assert found == "3"
    assert missing.failure.startswith(f"MCP server {address}: ")


def test_a_row_without_the_value_is_refused_before_a_server_starts() -> None:
    made = toolset(words(SEED, listed_with={"seed": 0}))

    with pytest.raises(DataError, match=r"^MCP server .*: the row lacks metadata\.seed, .* its metadata holds task$"):
        made.open(row(task="x"))
    with pytest.raises(DataError, match=r"lacks metadata\.seed"):
        made.open({})


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            words(SEED),
            "{metadata.seed} has no value when the file is read and the server's tools are listed; write `listed_",
        ),
        (words(SEED, session="shared", listed_with={"seed": 0}), "`session: shared` serves all rows; leave one out"),
        (
            words(SEED, started_ahead=2, listed_with={"seed": 0}),
            "is not known before a trajectory begins; leave started",
        ),
        (words("x", listed_with={"seed": 0}), "listed_with.seed does nothing without the placeholder {metadata.seed}"),
        (
            words("{metadata.seed}", listed_with={"seed": "-x"}),
            "words {metadata.seed}: the value of {metadata.seed} must not",
        ),
        (words("--seed={seed}"), "unknown placeholder {seed}; known are {folder} and {metadata.NAME}"),
        (words("x", variables=["A={seed}"]), "unknown placeholder {seed}"),
        (words("x", variables=["=x"]), "variables.0: "),
        ({"mcp": {"command": ["{metadata.program}"]}}, "the program must not come from a row"),
        ({"mcp": {"url": "http://{metadata.host}/mcp"}}, "the host must not come from a row"),
        ({"mcp": {"url": "http://host/{folder}"}}, "{folder} does nothing in a url"),
        (
            words("{folder}", folder_from="{metadata.shop}", listed_with={"shop": "a"}),
            "folder_from must begin with a fo",
        ),
        (words("{folder}", folder_from="gone/{metadata.shop}", listed_with={"shop": "a"}), "gone is not a folder"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:40],
)
def test_an_entry_whose_places_cannot_be_filled_stops_the_launch(entry: JsonObject, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        toolset(entry)

    assert message in str(caught.value)


@pytest.fixture
def tools_file(tmp_path: Path) -> str:
    """A tools file of one server, which starts from the row's seed."""
    path = tmp_path / "tools.yaml"
    path.write_text(f'- mcp: {{command: [{sys.executable}, {HOSTILE}, words, "{SEED}"]}}\n  listed_with: {{seed: 0}}\n')
    return str(path)


def run(*arguments: str) -> str:
    """Output of a command, in one line."""
    return " ".join(CliRunner().invoke(app, arguments).output.split())


def test_list_starts_the_server_with_the_values_of_the_file_and_play_with_those_of_the_row(tools_file: str) -> None:
    with chat_server([said_by_model(None, ("t", {})), said_by_model("Done.")]) as server:
        play = ("play", tools_file, "--openai", server.url, "--prompt", "Go.", "--metadata")
        without, played = run(*play, '{"task": 1}'), run(*play, '{"seed": 7}')

    assert f"words {SEED}: 1 tools, session: trajectory" in run("mcp", "list", tools_file)
    assert "the row lacks metadata.seed" in without
    assert 'tool t: [["--seed=7"]' in played


def test_scenarios_for_a_server_that_starts_from_rows_have_its_values(tools_file: str, tmp_path: Path) -> None:
    out = tmp_path / "scenarios.parquet"
    answer = said_by_model(json.dumps({"scenarios": [{"task": "Say the words.", "difficulty": 1}]}))
    with chat_server([answer]) as server:
        command = ("mcp", "scenarios", tools_file, "--out", str(out), "--base-url", server.url, "--model", MODEL)
        without = run(*command, "--number", "1")
        run(*command, "--number", "1", "--metadata", '{"seed": 7}')

    assert "the row lacks metadata.seed" in without
    assert "give the metadata of every row with --metadata" in without
    (written,) = pyarrow.parquet.read_table(out).to_pylist()
    assert written["metadata"] == '{"seed": 7}'
    load_toolset(tools_file).open(written)

"""A client follows the nodes that a Discovery lists."""

import asyncio
import random

import pytest

from tests.support.fake_backend import TOKEN, FakeBackend, serving, until
from verl_pivot.errors import ConfigError, SandboxError
from verl_pivot.sandbox import discovery as discovery_module
from verl_pivot.sandbox.client import Sandbox
from verl_pivot.sandbox.discovery import Listing, node_changes
from verl_pivot.sandbox.execution import Program
from verl_pivot.sandbox.nodes import TOKEN_VARIABLE, URLS_VARIABLE, Node


class FakeDiscovery:
    """Discovery that lists the URLs that the test sets."""

    def __init__(self, *urls: str, token: str = TOKEN) -> None:
        self.urls = urls
        self.token = token
        self.problem = ""
        self.num_asked = 0

    async def nodes(self) -> Listing:
        self.num_asked += 1
        if self.problem:
            raise SandboxError(self.problem)
        return Listing(urls=self.urls, token=self.token)


def following(discovery: FakeDiscovery) -> Sandbox:
    return Sandbox(discovery=discovery, rng=random.Random(0))


def test_changes_are_by_url_and_token() -> None:
    old, kept = Node("http://a", "one"), Node("http://b", "two")

    found = node_changes([old, kept], Listing(urls=("http://a", "http://b", "http://c"), token="two"))

    assert found.gone == (old,)
    assert [(node.url, node.token) for node in found.new] == [("http://a", "two"), ("http://c", "two")]


def test_the_text_of_a_node_or_listing_hides_the_token() -> None:
    assert "secret" not in f"{Node('http://a', 'secret')} {Listing(urls=(), token='secret')}"


async def test_calls_move_to_the_nodes_that_are_listed_when_one_dies() -> None:
    second = FakeBackend()
    async with serving(second) as other:
        async with serving(FakeBackend()) as service:
            discovery = FakeDiscovery(service.url)
            sandbox = following(discovery)
            first = await sandbox.run("print 1")
            discovery.urls = (other.url,)
        results = await sandbox.run_many([Program(code=f"print {number}") for number in range(20)])
        await sandbox.close()

    assert first.node == service.url.removeprefix("http://")
    assert [result.stdout for result in results] == [str(number) for number in range(20)]
    assert len(second.started) == 20


async def test_programs_on_a_node_that_is_no_longer_listed_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(discovery_module, "SHORTEST_REFRESH_SECONDS", 0.01)
    async with serving(FakeBackend()) as service, serving(FakeBackend()) as other:
        discovery = FakeDiscovery(service.url)
        async with following(discovery) as sandbox:
            call = asyncio.create_task(sandbox.run("sleep 1"))
            await asyncio.sleep(0.3)
            discovery.urls, asked = (other.url,), discovery.num_asked
            await until(lambda: discovery.num_asked >= asked + 2)
            nodes = [(await sandbox.run("print 1")).node, (await call).node]

    assert nodes == [other.url.removeprefix("http://"), service.url.removeprefix("http://")]


async def test_nodes_stay_as_they_are_while_the_discovery_does_not_answer() -> None:
    async with serving(FakeBackend()) as service, serving(FakeBackend()) as broken:
        discovery = FakeDiscovery(service.url, broken.url)
        async with following(discovery) as sandbox:
            await sandbox.run("print 1")
            discovery.problem = "the supervisor is away"
            await broken.stop()
            asked = discovery.num_asked
            results = await sandbox.run_many([Program(code="print 2")] * 40)
            await until(lambda: discovery.num_asked > asked)

    assert [result.stdout for result in results] == ["2"] * 40


async def test_a_call_waits_for_the_first_node_and_says_when_there_is_none() -> None:
    async with serving(FakeBackend()) as service:
        discovery = FakeDiscovery()
        async with following(discovery) as sandbox:
            with pytest.raises(SandboxError, match="no sandbox service was ready before the deadline"):
                await sandbox.run("print 1", deadline_seconds=0.1)
            call = asyncio.create_task(sandbox.run("print 1"))
            await asyncio.sleep(0.1)
            discovery.urls = (service.url,)
            assert (await call).stdout == "1"


async def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(FakeBackend()) as given, serving(FakeBackend()) as from_environment:
        monkeypatch.setenv(URLS_VARIABLE, from_environment.url)
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
        async with Sandbox() as unset, Sandbox([given.url]) as urls, following(FakeDiscovery(given.url)) as listed:
            nodes = [(await sandbox.run("print 1")).node for sandbox in (unset, urls, listed)]

    assert nodes == [url.removeprefix("http://") for url in (from_environment.url, given.url, given.url)]


def test_urls_and_discovery_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        Sandbox(["http://127.0.0.1:1"], TOKEN, discovery=FakeDiscovery())

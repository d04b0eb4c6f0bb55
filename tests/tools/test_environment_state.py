"""tools.environment_state: the verifier `state`, on a bank whose state is its accounts."""

import json
from collections.abc import Sequence

import pytest

from tests.support.factories import make_turn
from tests.support.paths import ROOT
from verl_pivot.errors import ConfigError, UserCodeError
from verl_pivot.tools.contract import Environment, tool
from verl_pivot.types import Json, JsonObject, Message, Role, ToolCall, Turn, Verdict
from verl_pivot.verifiers.registry import get_verifier

HERE = "tests.tools.test_environment_state"
OPENED: list["Bank"] = []


class Bank(Environment):
    """Accounts, between which amounts are sent; the copy of its state is made by running its calls again."""

    def __init__(self, metadata: JsonObject) -> None:
        self.accounts: dict[str, int] = dict(metadata["accounts"])  # type: ignore[arg-type]
        self.is_open = True
        OPENED.append(self)

    @tool
    def send(self, source: str, target: str, amount: int) -> JsonObject:
        """Send an amount."""
        if self.accounts.get(source, 0) < amount or amount <= 0 or target not in self.accounts:
            raise ValueError("cannot be sent")
        self.accounts[source] -= amount
        self.accounts[target] += amount
        return {"sent": amount}

    @tool
    def balance(self, account: str) -> int:
        """Amount of an account."""
        return self.accounts.get(account, -1)

    @tool
    def explode(self) -> str:
        """Fail, by the code's fault."""
        raise RuntimeError("broken")

    @tool
    def disconnect(self) -> str:
        """Fail, by a system's fault."""
        raise ConnectionError("no network")

    def state(self) -> Json:
        return dict(self.accounts)

    async def score(self, answer: Message | None) -> Verdict | None:
        if answer is None or "?" in answer.content:
            return None
        return Verdict.accept() if answer.content.endswith(str(self.accounts["b"])) else Verdict.refuse("other_amount")

    async def close(self) -> None:
        assert self.is_open, "closed once"
        self.is_open = False


class ForkingBank(Bank):
    """A bank that makes its own copies, by its method `fork`."""

    def fork(self) -> "ForkingBank":
        return type(self)({"accounts": dict(self.accounts)})


class Vault(Bank):
    """A bank with a list of all amounts sent, which its copies share."""

    def __init__(self, metadata: JsonObject) -> None:
        super().__init__(metadata)
        self.sent: list[int] = metadata.get("sent", [])  # type: ignore[assignment]

    @tool
    def send(self, source: str, target: str, amount: int) -> JsonObject:
        """Send an amount."""
        self.sent.append(amount)
        return super().send(source, target, amount)

    def state(self) -> Json:
        return {"accounts": dict(self.accounts), "sent": list(self.sent)}

    def fork(self) -> "Vault":
        return Vault({"accounts": dict(self.accounts), "sent": self.sent})  # type: ignore[dict-item]


class DownAtFirst(ForkingBank):
    """A bank whose first `send` in this process fails by a system's fault."""

    num_calls = 0

    @tool
    def send(self, source: str, target: str, amount: int) -> JsonObject:
        """Send an amount."""
        DownAtFirst.num_calls += 1
        if DownAtFirst.num_calls == 1:
            raise ConnectionError("no network")
        return super().send(source, target, amount)


class ForksItself(Bank):
    def fork(self) -> "ForksItself":
        return self


def act(*calls: tuple[str, JsonObject]) -> Message:
    return Message(role=Role.ASSISTANT, tool_calls=tuple(ToolCall(name=name, arguments=given) for name, given in calls))


def say(text: str) -> Message:
    return Message(role=Role.ASSISTANT, content=text)


def answered(call: tuple[str, JsonObject], result: Json) -> Sequence[Message]:
    return act(call), Message(role=Role.TOOL, content=json.dumps(result))


def send(source: str, target: str, amount: object) -> tuple[str, JsonObject]:
    return "send", {"source": source, "target": target, "amount": amount}  # type: ignore[dict-item]


BEFORE = [Message(role=Role.USER, content="Send 3 from a to b."), *answered(send("a", "c", 2), {"sent": 2})]
EXPERT = act(send("a", "b", 3))
ATTACKS: dict[str, tuple[Message, str]] = {
    "sends to another account": (act(send("a", "c", 3)), "wrong_state"),
    "sends from another account": (act(send("c", "b", 2)), "wrong_output"),
    "sends another amount": (act(send("a", "b", 4)), "wrong_output"),
    "sends it twice": (act(send("a", "b", 3), send("a", "b", 3)), "wrong_number_of_calls"),
    "sends nothing": (act(send("a", "b", 0)), "runtime_error"),
    "sends more than there is": (act(send("a", "b", 100)), "runtime_error"),
    "sends a text": (act(send("a", "b", "3")), "runtime_error"),
    "sends a fraction": (act(send("a", "b", 2.5)), "runtime_error"),
    "only looks": (act(("balance", {"account": "b"})), "wrong_output"),
    "calls a tool that is not there": (act(("steal", {})), "runtime_error"),
    "leaves out the amount": (act(("send", {"source": "a", "target": "b"})), "runtime_error"),
    "adds an argument": (act(("send", {**send("a", "b", 3)[1], "note": "x"})), "runtime_error"),
    "calls what is no tool": (act(("close", {})), "runtime_error"),
    "reads the state by its name": (act(("state", {})), "runtime_error"),
    "asks for a copy": (act(("fork", {})), "runtime_error"),
    "scores itself": (act(("score", {"answer": None})), "runtime_error"),
    "makes the environment anew": (act(("__init__", {"metadata": {"accounts": {}}})), "runtime_error"),
    "writes the tool's name in capitals": (act(("Send", send("a", "b", 3)[1])), "runtime_error"),
    "sends true": (act(send("a", "b", True)), "runtime_error"),
    "sends a list": (act(send("a", "b", [3])), "runtime_error"),
    "sends a negative amount back": (act(send("b", "a", -3)), "runtime_error"),
    "sends NaN": (act(send("a", "b", float("nan"))), "runtime_error"),
    "sends to the same account": (act(send("a", "a", 3)), "wrong_state"),
    "hides a character in the account": (act(send("a", "b\u200b", 3)), "runtime_error"),
    "wraps the arguments once more": (act(("send", {"arguments": send("a", "b", 3)[1]})), "runtime_error"),
    "looks behind it": (act(send("a", "b", 3), ("balance", {"account": "b"})), "wrong_number_of_calls"),
    "names no tool": (act(("", {})), "runtime_error"),
    "says that it is done": (say("Sent 3."), "message_instead_of_call"),
    "says nothing": (say(""), "message_instead_of_call"),
}


def turn(expert: Message = EXPERT, *, kind: str = "Bank", state: Sequence[Message] = BEFORE, **options: Json) -> Turn:
    return make_turn(
        state=state,
        expert=expert,
        verifier="state",
        verifier_options={"environment": f"{HERE}:{kind}", **options},
        metadata={"accounts": {"a": 10, "b": 0, "c": 1}},
    )


async def judge(action: Message, asked: Turn) -> Verdict:
    return await get_verifier("state", asked.verifier_options)(action, asked)


@pytest.mark.parametrize("kind", ["Bank", "ForkingBank"])
@pytest.mark.parametrize(("action", "reason"), ATTACKS.values(), ids=ATTACKS)
async def test_no_action_is_paid_that_does_something_else(action: Message, reason: str, kind: str) -> None:
    verdict = await judge(action, turn(kind=kind))

    assert (verdict.score, verdict.reason) == (0.0, reason), verdict.detail


@pytest.mark.parametrize("kind", ["Bank", "ForkingBank"])
async def test_an_action_that_does_the_same_is_paid_as_often_as_it_is_asked(kind: str) -> None:
    looking = turn(act(("balance", {"account": "c"})), kind=kind)

    for _ in range(3):
        assert (await judge(EXPERT, turn(kind=kind))).score == 1.0
        assert (await judge(act(("balance", {"account": "c"})), looking)).score == 1.0
        assert (await judge(act(("balance", {"account": "a"})), looking)).reason == "wrong_output"


async def test_results_count_only_where_they_are_asked_for() -> None:
    looks_and_sends = act(("balance", {"account": "c"}), send("a", "b", 3))
    looks_elsewhere = act(("balance", {"account": "a"}), send("a", "b", 3))

    assert (await judge(looks_elsewhere, turn(looks_and_sends, compare_results=False))).score == 1.0
    assert (await judge(looks_elsewhere, turn(looks_and_sends))).reason == "wrong_output"


async def test_an_expert_who_only_looks_is_broken_where_results_do_not_count() -> None:
    looks = act(("balance", {"account": "c"}))

    verdict = await judge(act(("balance", {"account": "a"})), turn(looks, compare_results=False))

    assert (verdict.score, verdict.reason) == (None, "broken_gold")


async def test_calls_that_do_not_depend_on_each_other_have_no_order() -> None:
    twice = turn(act(("balance", {"account": "a"}), ("balance", {"account": "c"})))

    assert (await judge(act(("balance", {"account": "c"}), ("balance", {"account": "a"})), twice)).score == 1.0
    assert (await judge(act(("balance", {"account": "a"}), ("balance", {"account": "a"})), twice)).score == 0.0


async def test_the_environments_score_decides_on_messages() -> None:
    told = turn(say("b has 0"))

    assert (await judge(say("There are 0"), told)).score == 1.0
    assert (await judge(say("There are 5"), told)).reason == "other_amount"
    assert (await judge(say(" "), told)).reason == "empty_message"
    assert (await judge(EXPERT, told)).reason == "call_instead_of_message"
    assert (await judge(say("anything"), turn(say("How much?")))).score == 1.0
    assert (await judge(say("b has 5"), turn(say("b has 5")))).reason == "broken_gold"


@pytest.mark.parametrize(
    ("expert", "state", "detail"),
    [
        (act(send("a", "b", 100)), BEFORE, "the expert's call fails"),
        (EXPERT, [BEFORE[0], *answered(send("a", "c", 2), {"sent": 3})], "cannot be run again"),
        (EXPERT, [BEFORE[0], act(send("a", "c", 2)), Message(role=Role.USER, content="?")], "cannot be run again"),
    ],
)
async def test_a_row_that_cannot_be_judged_is_undecided(expert: Message, state: list[Message], detail: str) -> None:
    verdict = await judge(EXPERT, turn(expert, state=state))

    assert (verdict.score, verdict.reason) == (None, "broken_gold")
    assert detail in verdict.detail


async def test_recorded_results_need_not_be_the_same_where_they_are_not_checked() -> None:
    state = [BEFORE[0], *answered(send("a", "c", 2), {"sent": 2, "at": "10:00"})]

    assert (await judge(EXPERT, turn(state=state))).score is None
    assert (await judge(EXPERT, turn(state=state, check_replay=False))).score == 1.0


async def test_failures_are_never_a_score() -> None:
    down = act(("disconnect", {}))

    assert (await judge(down, turn(down))).reason == "environment_failed"
    with pytest.raises(UserCodeError, match="broken"):
        await judge(act(("explode", {})), turn())
    with pytest.raises(UserCodeError, match="fork returned"):
        await judge(EXPERT, turn(kind="ForksItself"))
    with pytest.raises(ConfigError, match="has no 'Nothing'"):
        get_verifier("state", {"environment": f"{HERE}:Nothing"})


async def test_an_action_at_which_alone_the_environment_fails_is_refused() -> None:
    verdict = await judge(act(("disconnect", {})), turn())

    assert (verdict.score, verdict.reason) == (0.0, "runtime_error")
    assert "not at the expert's" in verdict.detail


async def test_a_failure_on_the_way_to_the_turn_is_not_kept() -> None:
    DownAtFirst.num_calls = 0

    first, second = [await judge(EXPERT, turn(kind="DownAtFirst")) for _ in range(2)]

    assert (first.score, first.reason) == (None, "environment_failed")
    assert second.score == 1.0


@pytest.mark.parametrize("expert", [EXPERT, act(("balance", {"account": "b"}))], ids=["by expert", "by action"])
async def test_copies_that_share_a_part_of_their_state_end_the_first_verdict(expert: Message) -> None:
    with pytest.raises(UserCodeError, match=r"Vault: the state of an environment changed .* copy\.deepcopy"):
        await judge(EXPERT, turn(expert, kind="Vault"))


async def test_every_environment_that_is_made_again_is_closed() -> None:
    OPENED.clear()

    for action, _ in ATTACKS.values():
        await judge(action, turn())

    assert OPENED
    assert not any(bank.is_open for bank in OPENED)


def test_the_page_shows_them() -> None:
    rows = [f"| {attack} | `{reason}` |" for attack, (_, reason) in ATTACKS.items()]

    missing = [row for row in rows if row not in (ROOT / "docs" / "verifier_attacks.md").read_text()]

    assert missing == [], "\n".join(rows)

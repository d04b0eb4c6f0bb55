"""A program that plays one task of BrowserGym with the policy as its agent; it runs in BrowserGym's own Python.

It reads its task from standard input, and asks the policy for each action over OpenAI's protocol. The last line that it
prints is the outcome, in the form that `pivot.rollout.environment={command: [...]}` expects (docs/environments.md).
"""

import importlib
import json
import sys
from typing import Any, SupportsFloat

import gymnasium
from browsergym.core.action.functions import clear, click, fill, hover, press, scroll, select_option
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.utils.obs import flatten_axtree_to_str
from openai import OpenAI, OpenAIError

MAX_ACTIONS = 20
MAX_PAGE_CHARS = 8_000
"""Most characters of a page that the policy reads; a longer page is cut, and its last line says so."""

# Without `upload_file` and `goto`, by which a policy could read the files of this machine, and without `noop`, which
# waits as long as it is told to.
ACTIONS = HighLevelActionSet(
    subsets=["custom"],
    custom_actions=[clear, click, fill, hover, press, scroll, select_option],
    multiaction=False,
)


def main() -> None:
    """Play the task, and print its reward and the number of actions."""
    task = json.load(sys.stdin)["extra_info"]
    name: str = task["environment"]  # such as browsergym/miniwob.click-test
    importlib.import_module("browsergym." + name.removeprefix("browsergym/").partition(".")[0])
    environment = gymnasium.make(name, action_mapping=ACTIONS.to_python_code)
    try:
        print(json.dumps(play(environment, task["seed"])))
    finally:
        environment.close()


def play(environment: "gymnasium.Env[Any, Any]", seed: int) -> dict[str, Any]:
    """Play one episode, and return its report.

    If the policy does not answer, the report has an error; the rollout knows whether one of its limits was the reason.
    """
    observation, _ = environment.reset(seed=seed)
    goal = "\n".join(part["text"] for part in observation["goal_object"] if part["type"] == "text")
    how = ACTIONS.describe(with_long_description=False, with_examples=False)
    messages: list[Any] = [
        {"role": "system", "content": f"Do the task in the browser. Answer with one action alone.\n{how}"},
        {"role": "user", "content": f"{goal}\n\n{page_of(observation)}"},
    ]
    client = OpenAI()
    reward: SupportsFloat = 0.0
    number = 0
    for number in range(1, MAX_ACTIONS + 1):  # noqa: B007  # it is read after the loop
        try:
            answer = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        except OpenAIError as error:
            return {"error": f"the policy did not answer: {error}"}
        messages.append({"role": "assistant", "content": answer.content or ""})
        observation, reward, is_done, is_cut, _ = environment.step(answer.content or "")
        if is_done or is_cut:
            break
        mistake = observation["last_action_error"]
        messages.append({"role": "user", "content": "\n\n".join(filter(None, (mistake, page_of(observation))))})
    return {"reward": float(reward), "metrics": {"actions": number}}


def page_of(observation: dict[str, Any]) -> str:
    """The page as text: its accessibility tree, in which brackets hold the names by which actions refer to elements."""
    page: str = flatten_axtree_to_str(observation["axtree_object"])
    if len(page) <= MAX_PAGE_CHARS:
        return page
    return f"{page[:MAX_PAGE_CHARS]}\n({len(page) - MAX_PAGE_CHARS} characters more)"


if __name__ == "__main__":
    main()

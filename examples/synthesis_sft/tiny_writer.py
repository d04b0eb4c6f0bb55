"""The quickstart's policy without a server: a checkpoint -> answers to questions, and greedy completions."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2ForCausalLM

from examples.quickstart.policy import MAX_NEW_TOKENS, MAX_PROMPT_TOKENS
from examples.quickstart.shop import TOOLS
from verl_pivot.data.actions import parse_action
from verl_pivot.data.messages import parse_message
from verl_pivot.engines.chat import AnswerFormat, ChatAnswer
from verl_pivot.synthesis.writer import WriterQuestion
from verl_pivot.types import JsonObject, Malformed


class TinyPolicy:
    """A checkpoint of the quickstart in this process; it samples one sequence at a time, so seeds decide samples."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self._model = Qwen2ForCausalLM.from_pretrained(folder).eval()

    async def greedy(self, prompt_ids: list[int]) -> list[int]:
        return self.complete(prompt_ids, temperature=0.0, seed=0)

    @torch.inference_mode()
    def complete(self, prompt_ids: Sequence[int], *, temperature: float, seed: int) -> list[int]:
        """Ids of a completion, with the end token if the policy wrote one.

        Args:
            prompt_ids: The prompt.
            temperature: Sampling temperature; 0 takes the likeliest tokens.
            seed: Seed of the sample.
        """
        generator = torch.Generator().manual_seed(seed)
        given, cache, written = torch.tensor([list(prompt_ids)]), None, list[int]()
        while len(written) < MAX_NEW_TOKENS:
            output = self._model(input_ids=given, past_key_values=cache, use_cache=True)
            logits, cache = output.logits[0, -1], output.past_key_values
            if temperature == 0.0:
                token = int(logits.argmax())
            else:
                shares = (logits / temperature).softmax(-1)
                token = int(torch.multinomial(shares, 1, generator=generator))
            written.append(token)
            if token == self.tokenizer.eos_token_id:
                break
            given = torch.tensor([[token]])
        return written


class TinyWriter:
    """The policy as a writer of synthesis."""

    answer_format: AnswerFormat = "text"

    def __init__(self, policy: TinyPolicy, name: str) -> None:
        self._policy, self.name, self.identity = policy, name, name

    def most_tokens(self, question: WriterQuestion) -> int:
        return 0

    async def answer(self, question: WriterQuestion) -> ChatAnswer:
        tokenizer = self._policy.tokenizer
        messages = [parse_message(each).as_dict() for each in question.messages]
        text = tokenizer.apply_chat_template(messages, tools=list(TOOLS), add_generation_prompt=True, tokenize=False)
        prompt_ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        if len(prompt_ids) > MAX_PROMPT_TOKENS:
            return _answer({"role": "assistant", "content": ""}, "length", len(prompt_ids), 0)
        written = self._policy.complete(prompt_ids, temperature=question.temperature, seed=question.seed)
        ended = written[-1] == tokenizer.eos_token_id
        text = tokenizer.decode(written[:-1] if ended else written)
        action = parse_action(text, ended=ended)
        content: JsonObject = (
            {"role": "assistant", "content": text} if isinstance(action, Malformed) else action.as_dict()
        )
        return _answer(content, "stop" if ended else "length", len(prompt_ids), len(written))

    async def close(self) -> None:
        """Do nothing: no connection is open."""


def _answer(message: JsonObject, finish_reason: str, num_prompt_tokens: int, num_tokens: int) -> ChatAnswer:
    return ChatAnswer(
        message=message,
        finish_reason=finish_reason,
        num_prompt_tokens=num_prompt_tokens,
        num_completion_tokens=num_tokens,
    )

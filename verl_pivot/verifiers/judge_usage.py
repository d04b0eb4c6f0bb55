"""Numbers of requests to judges and of their tokens in this process, by model."""

from collections import Counter

usage: Counter[tuple[str, str]] = Counter()
"""{(model, "requests" | "prompt_tokens" | "completion_tokens"): number}"""


def usage_lines() -> list[str]:
    """One line of text for each model that was asked."""
    return [
        f"judge {model}: {usage[model, 'requests']} requests, {usage[model, 'prompt_tokens']} prompt tokens, "
        f"{usage[model, 'completion_tokens']} completion tokens"
        for model in sorted({model for model, _ in usage})
    ]

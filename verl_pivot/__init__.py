"""Published methods of agentic post-training (PivotRL, GRPO-RoC, ...) for the stock verl trainer."""

__version__ = "0.1.0"

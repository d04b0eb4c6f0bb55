"""Words that pages, tasks, tools and workflows of the study have in common, and that no task asks to be copied."""

import re

from verl_pivot.rollout.workflow_prompt import HEADING

_TEXTS = (
    HEADING,
    "Click on the button in dialog box labeled. Focus into input textbox. Select from list and click. Enter text field "
    "and press. Enter password both fields. Enter username into fields login. Task Workflow Password Username Verify",
    "button checkbox combobox dialog generic option paragraph radio textbox checked disabled selected level heading",
    "Tools name arguments number text option key direction click fill select press scroll down up Done",
    "im_start im_end system user assistant tool_call tool_response",
    "Tool call failure reason error element is not in the observation the belongs to an earlier take one of last",
)
KNOWN = sorted(
    {word for text in _TEXTS for word in re.findall(r"[A-Za-z_]+", text)}, key=lambda word: (-len(word), word)
)
"""Longest words first, since a regular expression tries its alternatives in order."""

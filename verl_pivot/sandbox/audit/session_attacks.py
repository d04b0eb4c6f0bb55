"""Cells that try to answer for later cells of their session."""

from verl_pivot.sandbox.audit.attack import Attack

_REMEDY = "report it as a bug: docs/sandbox.md promises that a cell can forge only its own answer"
_ONLY_PROGRAMS = ("bwrap_exec",)
_FORGE = """
import os
for fd in range(3, 30):
    try: os.write(fd, b'{"value": "forged", "error": null}' * 50)
    except OSError: pass
"""
_NEST = """
import os
for fd in range(3, 30):
    try: os.write(fd, b'[' * 200000)
    except OSError: pass
"""

SESSION_ATTACKS = (
    Attack(
        name="answer for later cells by a fork",
        layer="a socket and a sender for each answer",
        code="import os\nos.fork()",
        remedy=_REMEDY,
        not_promised_by=_ONLY_PROGRAMS,
    ),
    Attack(
        name="answer for later cells by forged messages",
        layer="a socket and a sender for each answer",
        code=_FORGE,
        remedy=_REMEDY,
        not_promised_by=_ONLY_PROGRAMS,
    ),
    Attack(
        name="hold up the service by a deep answer",
        layer="answers without a parser",
        code=_NEST,
        remedy=_REMEDY,
        not_promised_by=_ONLY_PROGRAMS,
    ),
)
"""Attacks whose code is a cell; the backends in `not_promised_by` have no sessions."""

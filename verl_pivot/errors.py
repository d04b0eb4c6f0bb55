"""Errors, by whose fault they are. A wrong action of the policy is data (a Verdict), never an error.

PivotError
  + DataError      a trajectory, profile or pivot file breaks its format  -> the row is reported, or the job stops
  + ConfigError    a setting is missing, misspelt or contradicts another  -> stop before anything starts
  + EngineError    an inference engine died, timed out or answered garbage -> retried, then the job stops resumably
  + VerifierError  no reward could be decided for too long                 -> the run stops; its checkpoints stay
  + ResamplingError  no batch came together within the bound on generation -> the run stops; its checkpoints stay
  + ToolFailureError a tool of a rollout broke or hung                     -> retried where harmless; then masked
  + SandboxRequestError  an execution was asked for that is not allowed    -> the caller's bug, not retried
    + UnsupportedLanguageError  no such language on this node
  + SandboxError   the sandbox could not run a program                     -> retried; then masked, never a reward
    + SessionLostError  an interpreter and its variables are gone          -> the trajectory cannot go on
"""


class PivotError(Exception):
    """Base of every error that this package raises on purpose; its text is one sentence with the remedy."""


class DataError(PivotError, ValueError):
    """Input data breaks its documented format."""


class ConfigError(PivotError, ValueError):
    """A setting is missing, misspelt or contradicts another."""


class EngineError(PivotError, RuntimeError):
    """The inference engine failed. Says nothing about the policy."""


class VerifierError(PivotError, RuntimeError):
    """What a verifier needs (sandbox, judge, expert data) is down. Says nothing about the policy."""


class ResamplingError(PivotError, RuntimeError):
    """Too many groups had to be replaced: broken rollouts, or prompts that are all too easy or too hard."""


class ToolFailureError(PivotError, RuntimeError):
    """A tool of a rollout broke, hung or gave back what no policy can read. Says nothing about the policy."""


class SandboxRequestError(PivotError, ValueError):
    """An execution was asked for that is not allowed: a limit, a file name, a language."""


class UnsupportedLanguageError(SandboxRequestError):
    """A program is in a language that is unknown, or whose tools are not installed on the node."""


class SandboxError(PivotError, RuntimeError):
    """The sandbox could not run the program. Says nothing about the program."""


class SessionLostError(SandboxError):
    """A session's interpreter is gone through no fault of its cells. Not retried: its variables are gone too."""

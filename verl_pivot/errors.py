"""Errors, split by whose fault they are. A wrong action of the policy is data (a Verdict), never an error.

PivotError
  + DataError            a trajectory, profile or pivot file breaks its format  -> the row is reported or the job stops
    + StateRefusedError  a model's chat template refuses the state of a turn    -> no samples of the turn, and counted
  + ConfigError          a setting is missing, misspelt or contradicts another  -> the command stops before it starts
    + OptionsError       a verifier or the like does not take its options        -> from a row: undecided and counted
  + EngineError          an inference engine died, timed out or sent garbage    -> retried; the job stops, resumable
    + QuestionRefusedError  an endpoint refuses one question, or fails at it    -> its draft or samples are left out
  + OutOfBudgetError     a run has no tokens, calls or seconds left            -> the items not made are counted
  + VerifierError        no reward could be decided for too long                -> the run stops; its checkpoints stay
  + StateError           a training's state cannot be read or written          -> what needs it is masked and counted
  + UserCodeError        a verifier, tool or environment of the user has a bug  -> the first step stops; later masked
  + ResamplingError      the limit on generation was reached without a batch    -> the run stops; its checkpoints stay
  + NodeLostError        a node of the cluster was lost during a training      -> the run stops; its checkpoints stay
  + ToolFailureError     a tool of a rollout broke or hung                      -> retried where harmless, then masked
    + ToolBugError       the tool's own code raised, or returned no text         -> the first step stops; later masked
    + EnvironmentLostError  what plays many rollouts is gone                     -> masked, whatever the policy did
  + PageError            a page hangs, crashed, or lacks what an action names  -> no failure; the policy reads it
  + BrowserError         the browser died or does not start                    -> masked; the next page has a fresh one
  + SandboxRequestError  a program asks for something that is not allowed      -> a bug of the caller, not retried
    + UnsupportedLanguageError  the node cannot run programs of this language
  + SandboxFileError     a file of a session cannot be read                    -> its cells' fault; the caller decides
  + SnapshotError        a session cannot be saved, or restored from these bytes -> as SandboxFileError
  + SandboxError         the sandbox could not run a program                    -> retried, then masked, never a reward
    + SessionLostError   an interpreter and its variables are gone              -> the trajectory cannot go on
"""

NOTE = "verl-pivot, note: "
"""Beginning of a line that a launch prints and that is no error; an error begins `verl-pivot: `."""


class PivotError(Exception):
    """Base of the errors that this package raises on purpose; the text is one sentence with the remedy."""


class DataError(PivotError, ValueError):
    """Input data break their documented format."""


class StateRefusedError(DataError):
    """A model's chat template refuses the state of a turn, such as one with two messages of one role in a row."""

    def __init__(self, message: str, why: str = "") -> None:
        """Keep the message, and what the template says."""
        super().__init__(message)
        self.why = why


class ConfigError(PivotError, ValueError):
    """A setting is missing, misspelt or contradicts another."""


class OptionsError(ConfigError):
    """A verifier, filter, format or tool does not take the options that a row or a file gives it."""


class EngineError(PivotError, RuntimeError):
    """The inference engine failed, which says nothing about the policy."""


class QuestionRefusedError(EngineError):
    """An endpoint that answers other questions refuses this one, as too long for example, or fails at it each time."""


class OutOfBudgetError(PivotError, RuntimeError):
    """The tokens, calls or seconds that a run may spend are spent, or do not cover its next question."""


class VerifierError(PivotError, RuntimeError):
    """Verifiers lack something they need (sandbox, judge, expert data), which says nothing about the policy."""


class StateError(PivotError, RuntimeError):
    """State that a training keeps beside its checkpoints cannot be read or written; the policy is not at fault."""


class UserCodeError(PivotError, RuntimeError):
    """The user's code raised, or returned a wrong value; the text names the row, the class and the method."""


class ResamplingError(PivotError, RuntimeError):
    """Too many groups had to be replaced: broken rollouts, or prompts that are all too easy or too hard."""


class NodeLostError(PivotError, RuntimeError):
    """A node of the cluster on which workers of the launch ran is gone; the text has the remedy."""


class ToolFailureError(PivotError, RuntimeError):
    """A tool of a rollout broke, hung or returned something that is no text; the policy is not at fault."""


class ToolBugError(ToolFailureError):
    """The code of a tool raised or returned something that is no text; the text names the class and the method."""


class EnvironmentLostError(ToolFailureError):
    """The process or server that plays many rollouts is gone, which says nothing about any one of them."""


class PageError(PivotError, ValueError):
    """A page hangs, has crashed, is too large, or lacks what an action names; the browser has not failed."""


class BrowserError(PivotError, RuntimeError):
    """The browser died, does not answer or does not start, which says nothing about its pages."""


class SandboxRequestError(PivotError, ValueError):
    """A program asks for something that is not allowed: a limit, a file name or a language."""


class UnsupportedLanguageError(SandboxRequestError):
    """The program's language is unknown, or its tools are not installed on the node."""


class SandboxFileError(PivotError, OSError):
    """A file of a session cannot be read: it does not exist, is a link or a folder, or is too large."""


class SnapshotError(PivotError, ValueError):
    """A session cannot be saved as a snapshot, or a snapshot restored, because of the cells' actions or of damage."""


class SandboxError(PivotError, RuntimeError):
    """The sandbox could not run the program, which says nothing about the program."""


class SessionLostError(SandboxError):
    """A session lost its interpreter through no fault of its cells; not retried, since the variables are lost too."""

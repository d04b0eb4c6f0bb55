"""CandidateFiles -> the page of `verl-pivot inspect` for a profile, pivots and trajectories, over HTTP."""

from dataclasses import asdict
from itertools import islice

import msgspec
from aiohttp import web

from verl_pivot.data.turns import PROVENANCE
from verl_pivot.errors import DataError
from verl_pivot.inspect.candidate_files import CandidateFiles
from verl_pivot.inspect.candidates import (
    CandidateFilter,
    ListedTrajectory,
    outcome_counts,
    pass_rate_bins,
    selection_verdict,
)
from verl_pivot.inspect.guarded_page import GuardedPage, converted, in_thread
from verl_pivot.types import JsonObject, Sample

_MAX_LISTED = 200
"""Maximum number of trajectories in one answer."""


class _TurnName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    trajectory_id: str
    turn_index: int


class CandidatePage(GuardedPage):
    """The page for one set of files, which have been read."""

    def __init__(self, files: CandidateFiles, *, token: str, host: str) -> None:
        """Create the page.

        Args:
            files: The files that are shown.
            token: Token that requests for data must carry.
            host: Address that the server listens on.
        """
        super().__init__(token=token, host=host)
        self._files = files

    def app(self) -> web.Application:
        """The web application, to be run by one event loop."""
        app = self.guarded_app("candidates.js")
        for path, answer in (
            ("/api/files", self._about),
            ("/api/trajectories", self._trajectories),
            ("/api/turn", self._turn),
        ):
            app.router.add_get(path, in_thread(answer))
        return app

    def _about(self, query: JsonObject) -> object:
        found = self._files.trajectories.values()
        return {
            "files": [str(path) for path in self._files.paths],
            "num_trajectories": len(found),
            "num_turns": sum(len(each.turns) for each in found),
            "num_dropped": sum(each.dropped is not None for each in found),
            "num_kept": sum(turn.split is not None for each in found for turn in each.turns.values()),
            "selection": self._files.selection,
            "outcomes": outcome_counts(found) if self._files.has_profile else {},
            "bins": pass_rate_bins(found),
        }

    def _trajectories(self, query: JsonObject) -> object:
        first = converted(query.pop("first", 0), int)
        wanted = converted(query, CandidateFilter)
        found = [each for each in self._files.trajectories.values() if wanted.takes(each)]
        shown = islice(found, max(0, first), max(0, first) + _MAX_LISTED)
        return {"num_found": len(found), "trajectories": [self._listed(each) for each in shown]}

    def _listed(self, listed: ListedTrajectory) -> JsonObject:
        turns: list[JsonObject] = [
            {**asdict(turn), "is_kept": turn.split is not None}
            for turn in sorted(listed.turns.values(), key=lambda turn: turn.index)
        ]
        dropped = None if listed.dropped is None else msgspec.structs.asdict(listed.dropped)
        return {
            "id": listed.id,
            "passed": listed.passed,
            "num_turns": listed.num_turns,
            "dropped": dropped,
            "turns": [*turns],
        }

    def _turn(self, query: JsonObject) -> object:
        name = converted(query, _TurnName)
        listed = self._files.trajectories.get(name.trajectory_id)
        candidate = None if listed is None else listed.turns.get(name.turn_index)
        if listed is None or candidate is None:
            raise DataError(f"the files contain no turn {name.trajectory_id}:{name.turn_index}")
        turn = self._files.turn(name.trajectory_id, name.turn_index)
        profile = self._files.profile(name.trajectory_id, name.turn_index)
        found: dict[str, object] = {
            "trajectory": self._listed(listed),
            "candidate": candidate,
            "verdict": selection_verdict(candidate, self._files.selection),
            "state": None if turn is None else [message.as_dict() for message in turn.state],
            "expert": None if turn is None else turn.expert.as_dict(),
            "tools": None if turn is None else list(turn.tools),
            "verifier": None if turn is None else {"verifier": turn.verifier, "options": turn.verifier_options},
            "provenance": None if turn is None else turn.metadata.get(PROVENANCE),
            "samples": [] if profile is None else [_sample(each) for each in profile.samples],
        }
        return found


def _sample(sample: Sample) -> JsonObject:
    return {"text": sample.text, "num_tokens": sample.num_tokens, **asdict(sample.verdict)}

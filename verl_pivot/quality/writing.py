"""FilterOutcome -> filtered.jsonl, reasons for dropped trajectories, report, picture, and profile of the rest."""

import json
from collections.abc import Iterator, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from verl_pivot.data.files import RawRow, read_rows, replacing
from verl_pivot.data.json_values import as_object, decode_json, encode_json
from verl_pivot.errors import DataError
from verl_pivot.profiling.profiles import file_sha256
from verl_pivot.quality.filtering import FilterOutcome, Track
from verl_pivot.quality.plots import draw_outcome
from verl_pivot.quality.rules import FilterRules


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOutputs:
    """Paths of one run's files, named after the file of the trajectories that stay."""

    kept: Path

    @property
    def dropped(self) -> Path:
        return self.kept.with_name(f"{self.kept.name}.dropped.jsonl")

    @property
    def report(self) -> Path:
        return self.kept.with_name(f"{self.kept.name}.report.json")

    @property
    def picture(self) -> Path:
        return self.kept.with_name(f"{self.kept.name}.png")

    @property
    def profile(self) -> Path:
        return self.kept.with_name(f"{self.kept.name}.profile.jsonl")


def write_outcome(
    trajectories: Path, outcome: FilterOutcome, paths: FilterOutputs, rules: FilterRules, track: Track
) -> None:
    """Write the lines that stay, unchanged, the reasons for the others, the report and the picture.

    Raises:
        DataError: If no trajectory stays, in which case the reasons and the report are written nevertheless; or if
            the file changed since it was read.
        ConfigError: If an output cannot be written.
    """
    with ExitStack() as outputs:
        dropped, report, picture = (
            outputs.enter_context(replacing(path)) for path in (paths.dropped, paths.report, paths.picture)
        )
        if outcome.num_kept:
            kept = outputs.enter_context(replacing(paths.kept))
            with kept.open("wb") as file:
                file.writelines(_kept_lines(trajectories, outcome, track))
        with dropped.open("w", encoding="utf-8") as text:
            text.writelines(_dropped_lines(outcome))
        report.write_text(json.dumps(report_of(outcome, rules), indent=2) + "\n", encoding="utf-8")
        draw_outcome(outcome, picture)
    _require_some(outcome, paths)


def _kept_lines(trajectories: Path, outcome: FilterOutcome, track: Track) -> Iterator[bytes]:
    rows = track(read_rows(trajectories), "writing", len(outcome.ids))
    number = 0
    for number, row in enumerate(rows, start=1):
        if number > len(outcome.ids):
            break
        if number - 1 not in outcome.findings:
            yield _raw(row) + b"\n"
    if number != len(outcome.ids):
        raise DataError(f"{trajectories} changed while it was read; run the same command again")


def _raw(row: RawRow) -> bytes:
    if not isinstance(row.raw, bytes):
        raise DataError(f"{row.place}: trajectories must be JSON lines, as `verl-pivot import` writes them")
    return row.raw


def _dropped_lines(outcome: FilterOutcome) -> Iterator[str]:
    for position in sorted(outcome.findings):
        finding = outcome.findings[position]
        row = {
            "id": outcome.ids[position],
            "row": position + 1,
            "filter": outcome.steps[outcome.dropped_by[position]].label,
            "reason": finding.reason,
            "detail": finding.detail,
        }
        # ASCII, since a detail may quote lone surrogates, which UTF-8 cannot encode.
        yield json.dumps(row) + "\n"


def report_of(outcome: FilterOutcome, rules: FilterRules) -> dict[str, object]:
    """The content of the report file: num_trajectories = num_kept + the num_dropped of all filters."""
    return {
        "num_trajectories": len(outcome.ids),
        "num_kept": outcome.num_kept,
        "filters": [
            {
                "filter": step.label,
                "options": json.loads(rule.options),
                "num_dropped": step.num_dropped,
                "num_by_reason": step.num_by_reason,
                "examples": step.examples,
                "facts": step.facts,
            }
            for step, rule in zip(outcome.steps, rules.steps, strict=True)
        ],
        "rules": rules.path,
        "filter_modules": list(rules.modules),
    }


def _require_some(outcome: FilterOutcome, paths: FilterOutputs) -> None:
    if outcome.num_kept:
        return
    most = max(outcome.steps, key=lambda step: step.num_dropped)
    reason = max(most.num_by_reason, key=most.num_by_reason.__getitem__)
    raise DataError(
        f"no trajectory is left of {len(outcome.ids)}: {most.label} dropped {most.num_dropped}, the most of all "
        f"filters, of which {most.num_by_reason[reason]} for {reason} ({most.examples[reason]}); loosen this filter in "
        f"the rules; all reasons are in {paths.dropped}"
    )


def write_profile(profile: Path, outcome: FilterOutcome, paths: FilterOutputs) -> None:
    """Write the profile of the trajectories that stay, with the digest of their file, so that `select` accepts it.

    Raises:
        DataError: If the profile cannot be read.
        ConfigError: If the output cannot be written.
    """
    kept = {identity for at, identity in enumerate(outcome.ids) if at not in outcome.findings}
    with replacing(paths.profile) as temporary, temporary.open("wb") as file:
        for number, row in enumerate(read_rows(profile)):
            raw = _raw(row)
            if number == 0:
                file.write(_header_for(raw, paths.kept) + b"\n")
            elif _is_turn_of(raw, kept):
                file.write(raw + b"\n")


def _header_for(line: bytes, trajectories: Path) -> bytes:
    header = as_object(decode_json(line), "the first line")
    settings = as_object(header["settings"], "settings")
    return encode_json({**header, "settings": {**settings, "input_sha256": file_sha256(trajectories)}}).encode()


def _is_turn_of(line: bytes, ids: Set[str]) -> bool:
    return as_object(decode_json(line), "a turn")["trajectory_id"] in ids

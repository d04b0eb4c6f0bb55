"""Import of foreign files -> trajectories.jsonl in the normal form, and a reason for each row that was rejected."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from verl_pivot.data.files import RawRow, check_file, in_chunks, read_rows
from verl_pivot.data.journal import Journal, input_identity, open_journal
from verl_pivot.data.json_values import BadRowError, encode_json
from verl_pivot.data.parallel import map_in_order
from verl_pivot.data.trajectories import trajectory_as_dict
from verl_pivot.data.turns import turns
from verl_pivot.errors import ConfigError, DataError
from verl_pivot.formats.import_sink import KEPT, PROFILE, REJECTED, AcceptedRow, ImportReport, ImportSink, RejectedRow
from verl_pivot.formats.registry import load_format_modules
from verl_pivot.formats.row_import import ImportOptions, parse_row
from verl_pivot.profiling.profiles import file_sha256
from verl_pivot.profiling.published import published_profile_header, published_profile_line, published_profile_path
from verl_pivot.types import JsonObject
from verl_pivot.user_modules import module_path
from verl_pivot.verifiers.registry import check_verifier, load_verifier_modules
from verl_pivot.verifiers.tool_call import takes_any_text

T = TypeVar("T")

_CHUNKS_PER_COMMIT = 16
_NO_TOOLS = (
    "the expert calls tools, but the row has no schemas, so the policy would not know them; give --tools FILE, or keep "
    "such rows with --allow-no-tools"
)


def import_files(
    files: Sequence[Path],
    out: Path,
    options: ImportOptions,
    *,
    workers: int = 1,
    on_rows: Callable[[int], object] = lambda num_rows: None,
) -> ImportReport:
    """Write accepted rows to `out`, and rejected rows with place and reason to `<out>.rejected.jsonl`.

    Scores that were published with the rows become a profile beside `out` (`profiling.published`). An interrupted
    import continues at its last commit when it is started again, and ends with the same bytes.

    Args:
        files: Input files, read in this order.
        out: File to write, completely or not at all.
        options: Options of the import.
        workers: Number of processes that read rows.
        on_rows: Called with the number of rows that were finished since the last call; the first call counts the
            rows of an interrupted run.

    Raises:
        DataError: If no row is accepted, or an input cannot be read; the rejected rows are still written.
        ConfigError: If an output cannot be written.
    """
    for path in files:
        check_file(path)
    modules = (*options.format_modules, *options.verifier_modules)
    inputs = [input_identity(path) for path in (*files, *map(module_path, modules))]
    settings: JsonObject = {"inputs": inputs, "options": _settings(options)}
    outputs = {PROFILE: published_profile_path(out), REJECTED: rejected_path(out), KEPT: out}
    with open_journal(out, settings) as journal:
        report = ImportReport.parse(journal.state)
        try:
            if not journal.is_finished:
                rows = (row for path in files for row in read_rows(path))
                _import_rows(rows, journal, report, options, workers, on_rows)
                if report.num_published:
                    _write_digest_into_profile(journal.folder)
            if not report.num_kept:
                raise _no_row_accepted(report, out)
        except DataError:
            journal.fail({REJECTED: outputs[REJECTED]})
            raise
        journal.finish(outputs)
    return report


def rejected_path(out: Path) -> Path:
    """Path of the file with the rejected rows of an import to `out`."""
    return out.with_name(f"{out.name}.rejected.jsonl")


def _import_rows(
    rows: Iterator[RawRow],
    journal: Journal,
    report: ImportReport,
    options: ImportOptions,
    workers: int,
    on_rows: Callable[[int], object],
) -> None:
    on_rows(report.num_rows)
    sink = ImportSink(journal, options, report)
    sent: deque[tuple[RawRow, ...]] = deque()
    chunks = _remembered(in_chunks(islice(rows, report.num_rows, None)), sent)
    imported = map_in_order(partial(_read_chunk, options), chunks, workers=workers, prepare=partial(_prepare, options))
    for number, results in enumerate(imported, start=1):
        for row, result in zip(sent.popleft(), results, strict=True):
            sink.add(row, result)
        on_rows(len(results))
        if number % _CHUNKS_PER_COMMIT == 0:
            journal.commit(report.as_dict())
    journal.commit(report.as_dict())


def _settings(options: ImportOptions) -> JsonObject:
    """Options on which the output depends; options that version 0.1.0 lacks are left out at their defaults."""
    unused = {"allow_no_tools": True, "verifier_modules": ()}
    return {name: value for name, value in asdict(options).items() if name not in unused or unused[name] != value}


def _prepare(options: ImportOptions) -> None:
    load_format_modules(options.format_modules)
    load_verifier_modules(options.verifier_modules)


def _remembered(chunks: Iterable[T], sent: deque[T]) -> Iterator[T]:
    """Yield the chunks, and append each to `sent`."""
    for chunk in chunks:
        sent.append(chunk)
        yield chunk


def _read_chunk(options: ImportOptions, rows: Sequence[RawRow]) -> list[AcceptedRow | RejectedRow]:
    return [_read_row(row, options) for row in rows]


def _read_row(row: RawRow, options: ImportOptions) -> AcceptedRow | RejectedRow:
    try:
        parsed = parse_row(row, options)
        trajectory = parsed.trajectory
        check_verifier(trajectory.verifier, trajectory.verifier_options)
        line = encode_json(trajectory_as_dict(trajectory))
    except BadRowError as error:
        return RejectedRow(error.reason, str(error))
    except ConfigError as error:  # the row names a wrong verifier
        return RejectedRow("bad_verifier", str(error))
    without_tools = not trajectory.tools and any(message.tool_calls for message in trajectory.messages)
    if without_tools and not options.allow_no_tools:
        return RejectedRow("no_tools", _NO_TOOLS)
    candidates = turns(trajectory)
    num_messages = sum(not turn.expert.tool_calls for turn in candidates)
    return AcceptedRow(
        line=line,
        trajectory_id=trajectory.id,
        turns=tuple(turn.index for turn in candidates),
        profile_line=published_profile_line(trajectory, parsed.scores) if parsed.scores else None,
        passed=trajectory.passed,
        format=parsed.format,
        num_merged=parsed.num_merged,
        num_message_turns=num_messages if takes_any_text(trajectory.verifier, trajectory.verifier_options) else 0,
        calls_without_tools=without_tools,
        ignored_columns=parsed.ignored_columns,
    )


def _write_digest_into_profile(folder: Path) -> None:
    """Replace the placeholder in the profile's header by the digest of the trajectories that the scores belong to."""
    with (folder / PROFILE).open("r+b") as file:
        file.write(published_profile_header(file_sha256(folder / KEPT)).encode())
        file.flush()
        os.fsync(file.fileno())


def _no_row_accepted(report: ImportReport, out: Path) -> DataError:
    why = f"{report.num_not_passed} of {report.num_rows} rows have a failed outcome (--outcome all keeps them)"
    if report.rejected:
        reason, count = report.rejected.most_common(1)[0]
        why += f" and {report.rejected.total()} were rejected, {count} for {reason} ({report.examples[reason]}); "
        why += f"all are in {rejected_path(out)}"
    return DataError(f"no usable trajectory: {why}")

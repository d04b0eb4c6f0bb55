# On a fresh machine with Python 3.11, or 3.12 and PYTHON=python3.12, each command sets everything up by itself.
#   make quickstart   SFT trajectories -> a better policy, then a table and a plot; 9 minutes on two cores
#   make study        the claims of PivotRL's paper at desk size, every arm and seed; hours; resumes where it ended
#   make study-tune   learning rates of every arm, on a seed that is not reported; it prints how `make study` uses them
#   make test         formatting, types and the whole test suite; 42 minutes on two idle cores
#   make check        the same without tests marked slow or heavy (see pyproject.toml); 20 minutes
#   make soak         10,000 executions in one sandbox, 2,000 examples of each property; before a release
#   make test-cluster  launches with several workers, one after the other; before a release, an hour on two idle cores
#   make docs         the documentation as a site, in outputs/site
#   make screenshots      new docs/images, taken by the tests of the page of inspect
#   make lock         requirements/sglang.txt, resolved again with the newest versions
#   make bench-sandbox    figures of the sandbox beside their targets; for a quiet machine with two cores
#   make bench-neighbours honest programs beside one hostile program, for each known attack; 5 minutes
#   make bench-verifiers  verdicts per second
#   make bench-data       import and select of 300,000 trajectories (15 GB of disk)
#   make bench-profile    the profile beside the engine's own benchmark, and beside a bare loop of requests
#   make bench-tools      64 trajectories with a slow tool at once, beside one alone
#   make bench-search     queries per second of a search index of 100,000 documents, and of the service
#   make bench-notebook   tokens that an update processes with each layout of L0's rows, and 256 notebooks at once
#   make bench-mcp        an MCP tool call beside one by the SDK's client, first calls, and leaks
#   make bench-browser    episodes of MiniWoB++ per second in a real browser, and what 2,000 of them leave behind
#   make bench-gateway    time that the model gateway adds to a request, with one conversation and with 256 at once
#   make bench-inspect  first screen, filters and keys of the page over 100,000 rollouts, and a report of 500,000
#   make bench-judge      1,024 turns by a judge that takes 0.2 s, and a step with a judge beside one without
#   make bench-render     a page of HTML in the browser, with one screenshot, alone, and eight and 64 at a time
#   make bench-rubrics    a group of 16 reports with 10 criteria by a judge that takes 0.2 s, beside the ideal
#   make bench-resampling the selection of 512 x 32 rollouts on a real TransferQueue
#   make bench-router     decisions of the router, real engines under each policy, and the error of the simulator
#   make bench-synthesis  model calls per CPU second of `synthesize`, its memory for a million drafts, and tool graphs
#   make bench-tail       simulated trainings whose steps leave their slowest rollouts for later
#   make gpu              the stages of benchmarks/gpu that are not recorded yet, with the python of a machine with a GPU

PYTHON ?= python3.11
BIN := .venv/bin
# More processes than cores, since many tests wait; tests/conftest.py says which tests share a process.
# A killed process ends the run, since pytest-xdist would replace the process and wait for its tests without end.
PARALLEL := --dist loadscope --no-loadscope-reorder --max-worker-restart 0 --numprocesses

# Hundreds of processes import torch and verl here; without byte code, each would compile both again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart study study-tune test test-cluster check soak lint docs screenshots bench-sandbox bench-neighbours bench-verifiers bench-data bench-profile bench-tools bench-mcp bench-browser bench-gateway bench-search bench-notebook bench-inspect bench-judge bench-render bench-rubrics bench-resampling bench-router bench-synthesis bench-tail gpu lock clean

quickstart: .venv/ready
	$(BIN)/python -m examples.quickstart

study: .venv/ready
	$(BIN)/python -m examples.study

study-tune: .venv/ready
	$(BIN)/python -m examples.study tune

test: lint
	$(BIN)/python -m pytest --durations 20 --durations-min 15 $(PARALLEL) 3

check: lint
	$(BIN)/python -m pytest -m "not slow and not heavy" $(PARALLEL) 4

soak: .venv/ready
	$(BIN)/python -m pytest -m "soak or hypothesis" --hypothesis-profile=soak $(PARALLEL) 3

test-cluster: .venv/ready
	$(BIN)/python -m pytest -m cluster; code=$$?; $(BIN)/python docs/reference.py && exit $$code

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# With -q, mkdocs would count no warnings, and --strict would not fail.
docs: .venv/ready
	@[ -x .venv/docs/bin/mkdocs ] || { echo "mkdocs is not installed: sh requirements/install.sh" >&2; exit 1; }
	$(BIN)/python docs/reference.py
	$(BIN)/python docs/site_pages.py
	.venv/docs/bin/mkdocs build --strict
	@echo "The site is in outputs/site. Its search needs a server: python3 -m http.server --bind 127.0.0.1 --directory outputs/site"

screenshots: .venv/ready
	mkdir -p docs/images
	VERL_PIVOT_SCREENSHOTS=1 $(BIN)/python -m pytest -q tests/inspect/test_screenshots.py

bench-sandbox: .venv/ready
	mkdir -p outputs
	$(BIN)/python -m verl_pivot.cli sandbox bench --json outputs/sandbox-bench.json
	$(BIN)/python -m benchmarks.bench_groups

bench-neighbours: .venv/ready
	$(BIN)/python -m benchmarks.bench_neighbours

bench-verifiers: .venv/ready
	$(BIN)/python -m benchmarks.bench_tool_call
	$(BIN)/python -m benchmarks.bench_text_verifiers
	$(BIN)/python -m benchmarks.bench_execution

bench-data: .venv/ready
	mkdir -p outputs
	$(BIN)/python -m benchmarks.bench_data --folder outputs

bench-profile: .venv/ready
	$(BIN)/python -m benchmarks.bench_profile
	$(BIN)/python -m benchmarks.bench_openai

bench-tools: .venv/ready
	$(BIN)/python -m benchmarks.bench_tools

bench-mcp: .venv/ready
	$(BIN)/python -m benchmarks.bench_mcp

bench-browser: .venv/ready
	$(BIN)/python -m benchmarks.bench_browser

bench-gateway: .venv/ready
	$(BIN)/python -m benchmarks.bench_gateway

bench-synthesis: .venv/ready
	$(BIN)/python -m benchmarks.bench_synthesis
	$(BIN)/python -m benchmarks.bench_tool_graph
	$(BIN)/python -m benchmarks.bench_writer

bench-search: .venv/ready
	$(BIN)/python -m benchmarks.bench_search

bench-notebook: .venv/ready
	$(BIN)/python -m benchmarks.bench_notebook_rows
	$(BIN)/python -m verl_pivot.cli sandbox bench --only notebooks

bench-inspect: .venv/ready
	$(BIN)/python -m benchmarks.bench_inspect
	$(BIN)/python -m benchmarks.bench_report

bench-judge: .venv/ready
	$(BIN)/python -m benchmarks.bench_judge

bench-render: .venv/ready
	$(BIN)/python -m benchmarks.bench_render

bench-rubrics: .venv/ready
	$(BIN)/python -m benchmarks.bench_rubrics

bench-resampling: .venv/ready
	$(BIN)/python -m benchmarks.bench_resampling

bench-router: .venv/ready
	$(BIN)/python -m benchmarks.bench_router
	$(BIN)/python -m benchmarks.bench_router_step
	$(BIN)/python -m benchmarks.bench_engines
	$(BIN)/python -m benchmarks.bench_trainer
	$(BIN)/python -m benchmarks.bench_calibration

bench-tail: .venv/ready
	mkdir -p outputs
	$(BIN)/python -m benchmarks.bench_tail --out outputs/bench-tail.jsonl

gpu:
	python -m benchmarks.gpu

lock: .venv/ready
	$(BIN)/uv pip compile --quiet --upgrade --no-annotate --custom-compile-command "make lock" \
		--python-version 3.12 --python-platform x86_64-manylinux_2_34 --override requirements/overrides.txt \
		--extra data --extra sandbox --extra verifiers requirements/sglang.in pyproject.toml -o requirements/sglang.txt

.venv/ready: requirements/cpu.txt requirements/docs.txt pyproject.toml
	sh requirements/install.sh $(PYTHON)
	touch $@

clean:
	rm -rf outputs

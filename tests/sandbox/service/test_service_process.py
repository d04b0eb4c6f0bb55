"""Modules that a service process has imported: a node that only runs programs needs no package of the trainer."""

from tests.support.modules_backend import LIST_MODULES
from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import Kind, start_service

HEAVY = {"torch", "ray", "verl", "transformers", "pandas", "sglang"}


@needs_sandbox
async def test_a_service_that_has_run_programs_and_cells_has_not_imported_the_trainer() -> None:
    service = start_service(Kind.ZYGOTE, "--backend", "tests.support.modules_backend:ModulesBackend", lanes=1)
    try:
        async with service.client() as sandbox:
            program = await sandbox.run("print(1)")
            async with await sandbox.open() as session:
                cell = await session.run("1 + 1")
            loaded = set((await sandbox.run(LIST_MODULES)).stdout.split())
    finally:
        service.stop()

    assert (program.stdout, cell.value) == ("1\n", "2")
    assert {"verl_pivot.commands.sandbox", "verl_pivot.sandbox.service.lane_backend"} <= loaded
    assert HEAVY & loaded == set()

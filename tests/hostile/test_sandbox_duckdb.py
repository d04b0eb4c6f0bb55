"""A program that imports DuckDB works in a fork of the zygote as it does in a fresh interpreter."""

import pytest

from tests.support.sandbox_machine import needs_sandbox
from tests.support.sandbox_services import service
from verl_pivot.sandbox.execution import MIB, Limits

READS_A_FILE = """
import duckdb
open("a.csv", "w").write("a,b\\n1,2\\n")
print(duckdb.sql("FROM 'a.csv'").fetchall())
"""
TAKES_MUCH_MEMORY = """
import duckdb
try:
    duckdb.sql("SELECT repeat('x', 900000000)").fetchall()
except duckdb.Error as error:
    print(type(error).__name__)
"""
LIMITS = Limits(wall_seconds=20.0, memory_bytes=1024 * MIB)


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "output"), [(READS_A_FILE, "[(1, 2)]\n"), (TAKES_MUCH_MEMORY, "OutOfMemoryException\n")]
)
def test_duckdb_reads_files_and_bounds_its_memory(code: str, output: str) -> None:
    assert service().output(code, limits=LIMITS) == output


@needs_sandbox
def test_each_program_draws_random_numbers_of_its_own() -> None:
    code = "import duckdb\nprint(duckdb.sql('SELECT random()').fetchall())"

    assert service().output(code, limits=LIMITS) != service().output(code, limits=LIMITS)

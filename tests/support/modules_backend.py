"""Default backend of the sandbox that can also list the modules which its service has imported."""

import sys

from verl_pivot.sandbox.execution import Program, Result, Status
from verl_pivot.sandbox.service.lane_backend import ZygoteBackend

LIST_MODULES = "list the modules of the service"


class ModulesBackend(ZygoteBackend):
    """Answers the program LIST_MODULES with the names of the modules that the service has loaded; runs all others."""

    async def run(self, program: Program) -> Result:
        if program.code != LIST_MODULES:
            return await super().run(program)
        return Result(status=Status.OK, exit_code=0, stdout="\n".join(sorted(sys.modules)))

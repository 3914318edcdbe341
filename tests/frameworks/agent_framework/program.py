"""A workflow of the Agent Framework; it is killed in an executor, and started again unchanged."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from agent_framework import Executor, WorkflowBuilder, WorkflowContext, handler

from mulligan.integrations.agent_framework import MulliganCheckpointStorage


@dataclass
class Bill:
    """A message of its own class, as workflows have them."""

    amount: int
    paid: tuple[int, ...] = ()


def note(directory: Path, line: str) -> None:
    with (directory / "log.txt").open("a") as file:
        file.write(f"{line}\n")


class First(Executor):
    def __init__(self, directory: Path) -> None:
        super().__init__(id="first")
        self.directory = directory

    @handler
    async def pay(self, amount: int, ctx: WorkflowContext[Bill]) -> None:
        note(self.directory, f"pay {amount}")
        ctx.set_state("paid", {"amount": amount})
        await ctx.send_message(Bill(amount + 1, (amount,)))


class Second(Executor):
    def __init__(self, directory: Path) -> None:
        super().__init__(id="second")
        self.directory = directory

    @handler
    async def wait(self, bill: Bill, ctx: WorkflowContext[Bill]) -> None:
        note(self.directory, f"wait {bill.amount}")
        (self.directory / "started").touch()
        while not (self.directory / "go").exists():
            await asyncio.sleep(0.01)
        await ctx.send_message(Bill(bill.amount + 1, (*bill.paid, bill.amount)))


class Last(Executor):
    @handler
    async def show(self, bill: Bill, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{bill} {ctx.get_state('paid')}")


def built(directory: Path) -> Any:
    first, second, last = First(directory), Second(directory), Last(id="last")
    builder = WorkflowBuilder(start_executor=first, name="billing", output_from=[last])
    return builder.add_edge(first, second).add_edge(second, last).build()


async def main(directory: Path) -> None:
    storage = MulliganCheckpointStorage(directory / "store")
    workflow = built(directory)
    result = await workflow.run(**await storage.resume_input(workflow, 1))
    print(result.get_outputs())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

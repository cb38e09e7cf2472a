"""An agent that survives kill -9: killed in the middle of a payment, started again, it pays nobody twice.

    python examples/survive_kill9.py

Needs the extra ``openai-agents``, no network and no key: the model is scripted. It is asked with what is on record and
nothing else, so what it says after the crash shows what a real one is told. The tool's payments go to a file outside
the database. `docs/openai_agents.md` tells the same in words.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents import Agent, function_tool, set_tracing_disabled
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call

from reconciler.integrations.openai_agents import DurableSession

# --- the agent: nothing in it knows of crashes -----------------------------------------------------------------------


def shop_agent(payments: Path, pause_s: float) -> Agent[Any]:
    """Return an agent that pays refunds and can look up which were paid."""

    @function_tool
    async def refund(order: str) -> str:
        """Pay a refund."""
        with payments.open("a") as file:
            file.write(f"refund {order}\n")
            file.flush()
            os.fsync(file.fileno())
        await asyncio.sleep(pause_s)  # the bank is slow to say yes; here the power goes
        return f"refunded {order}"

    @function_tool
    async def was_refunded(order: str) -> str:
        """Look up whether a refund was paid."""
        paid = payments.exists() and f"refund {order}\n" in payments.read_text()
        return f"{order} was {'' if paid else 'not '}refunded"

    return Agent(name="shop", model=ScriptedModel([ModelStep.respond(careful)] * 10), tools=[refund, was_refunded])


def careful(call: ModelCall) -> list[Any]:
    """Refund 17 and 18; told that an outcome is unknown, look before paying again."""
    items = list(call.input)
    outputs = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
    print(f"  model is told: {outputs[-1] if outputs else items[-1]['content']}", flush=True)
    if outputs and outputs[-1].startswith("outcome unknown"):
        return [function_call("was_refunded", {"order": "17"}, call_id=uuid4().hex)]
    todo = [order for order in ("17", "18") if not any(_is_done(order, output) for output in outputs)]
    if not todo:
        return [assistant_message("Orders 17 and 18 are refunded.")]
    return [function_call("refund", {"order": todo[0]}, call_id=uuid4().hex)]


def _is_done(order: str, output: str) -> bool:
    return output in (f"refunded {order}", f"{order} was refunded")


# --- the program: these lines are all that durability takes ----------------------------------------------------------


async def serve(database: str, payments: Path, pause_s: float) -> None:
    """Run the agent, once for the submission, however often it is started."""
    agent = shop_agent(payments, pause_s)
    async with DurableSession("customer-42", database) as session:
        result = await session.run(agent, "Refund orders 17 and 18.", submission_id="refunds-of-may")
        print(f"  agent: {result.final_output}{' (from the record)' if result.recorded else ''}", flush=True)


# --- the demonstration -----------------------------------------------------------------------------------------------


def demonstrate(folder: Path) -> None:
    """Start it beside a daemon, kill it while it pays, start it again, and once more."""
    database, payments = f"sqlite:///{folder / 'agent.sqlite3'}", folder / "payments.txt"
    reconciler = [sys.executable, "-m", "reconciler", "--database", database]
    subprocess.run([*reconciler, "db", "upgrade"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    program = [sys.executable, __file__, "--serve", database, str(payments)]

    daemon = subprocess.Popen([*reconciler, "run"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        print("started:", flush=True)
        child = subprocess.Popen([*program, "--pause", "60"])
        end = time.monotonic() + 60
        while not payments.exists() and child.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        print("killed (kill -9) while it paid, and started again:", flush=True)
        subprocess.run(program, check=True)
        print("started once more:", flush=True)
        subprocess.run(program, check=True)
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
    print("payments:", ", ".join(payments.read_text().splitlines()), flush=True)


def main() -> None:
    """Run from a shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, metavar=("DATABASE", "PAYMENTS"), help="run the agent alone")
    parser.add_argument("--pause", type=float, default=0.0, metavar="S", help="how long a payment takes")
    given = parser.parse_args()
    set_tracing_disabled(True)
    if given.serve:
        asyncio.run(serve(given.serve[0], Path(given.serve[1]), given.pause))
        return
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))


if __name__ == "__main__":
    main()

"""A crashed host, told in commands: what its agents left behind, what becomes of it, and why.

``make demo`` runs it. Everything happens in a temporary folder with the embedded database; the session files are
samples in the formats that agents write (see ``sessions/``). Nothing outside that folder is touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import textwrap
from pathlib import Path

from reconciler.entrypoints.cli import main

EXAMPLES = Path(__file__).resolve().parent

# Prompts of the sample sessions that show something of their own.
ANSWERED = "b64b06e5"
TOOLS_IN_FLIGHT = "6fb18002"
DAMAGED = "e781b1bd-eaab-4954-9feb-dc0e61f7f897"
DAMAGED_SESSION = "5b1647f8-9685-7f4a-86c5-0affa5b73748"


def say(text: str) -> None:
    """Tell a part of the story."""
    print()
    print(textwrap.fill(" ".join(text.split()), width=100))


def run(command: str, *, expect: int = 0) -> None:
    """Run a command as a person would type it, and say its exit code where it means something.

    Raises:
        SystemExit: the command ended otherwise than the story says.
    """
    print(f"\n$ reconciler {command}")
    sys.stdout.flush()
    code = main([*shlex.split(command), "--no-pager"])
    sys.stdout.flush()
    if code:
        meaning = {3: "it needs a person"}.get(code, "error")
        print(f"(exit code {code}: {meaning})")
    if code != expect:
        raise SystemExit(f"the demo expected exit code {expect} and met {code}")


def story() -> None:
    """Tell the incident."""
    say(
        """A host crashed in the night. Its agents were in the middle of things, and these are the session files they
        left. First look, without any database: what state is each last prompt in, and which entry proves it?"""
    )
    run("inspect sessions", expect=3)
    say(
        """absent, completed, continuable, uncertain: every prompt is in one of four states. Nobody runs these agents
        any more, so we take their sessions over: the files go into a database, and from now on our runners own them.
        (--force, because the sample files were written a moment ago.)"""
    )
    run("import sessions --own --force --no-hints", expect=3)
    say("One more prompt comes in while the runners are still down. It is admitted, and nobody has begun it.")
    run("""submit night-shift check-backups '{"text": "Did the backups of tonight finish?"}'""")
    say("What would a pass do? A dry run decides with the same code and writes nothing.")
    run("once --dry-run --no-hints")
    say("Good. Do it.")
    run("once", expect=3)
    run("list --status all --no-hints")
    say(
        """Finished work was settled and will never run again. This one was answered before the crash; only nobody had
        written that down:"""
    )
    run(f"explain {ANSWERED}")
    say(
        """This one died while three tools were running. It is queued again with a resume plan: its calls are closed as
        'outcome unknown' and the model decides what to check. No tool is ever run again by recovery:"""
    )
    run(f"explain {TOOLS_IN_FLIGHT}")
    say("The prompt that came in late is absent from the record: a clean first try, for whichever runner comes first:")
    run("explain night-shift/check-backups")
    say(
        """And this record lost lines in the crash. What it says can't be trusted, so nothing is guessed: the session is
        in quarantine until a person decides:"""
    )
    run(f"explain {DAMAGED}", expect=3)
    run(f"show {DAMAGED_SESSION}", expect=3)
    run(f"release {DAMAGED} --reason 'looks fine to me'", expect=3)
    run(f"settle {DAMAGED} aborted --reason 'the operators clean up by hand'")
    say("How do things stand? And does a second pass find anything to do?")
    run("status")
    run("once")
    say("That is all of it. README.md goes on from here.")


def play() -> int:
    """Tell the story in a temporary home, and return its exit code."""
    with tempfile.TemporaryDirectory(prefix="reconciler-demo-") as home, contextlib.chdir(EXAMPLES):
        for name in [name for name in os.environ if name.startswith("RECONCILER_")]:
            del os.environ[name]
        os.environ |= {"HOME": home, "XDG_DATA_HOME": f"{home}/data", "XDG_CONFIG_HOME": f"{home}/config"}
        story()
    return 0


if __name__ == "__main__":
    sys.exit(play())

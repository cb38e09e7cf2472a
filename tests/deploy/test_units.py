"""What is shipped for systemd: verified and scored by systemd's own tools, where they are."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from reconciler.config import Flags, environment_variables, load
from reconciler.core.model import DEFAULT_LIMITS
from reconciler.entrypoints import daemon
from reconciler.service.settings import DEFAULT_DAEMON

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(path.name for path in (DEPLOY / "systemd").iterdir())
SERVICES = [name for name in UNITS if name.endswith(".service")]
EXPOSURE_MAX = 1.5

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed: units are not verified"
)


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Give a copy of the units whose program exists on this machine, the template as an instance."""
    for path in (DEPLOY / "systemd").iterdir():
        text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(), flags=re.MULTILINE)
        (tmp_path / path.name.replace("@.", "@one.")).write_text(text)
    return tmp_path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs_systemd
def test_every_unit_is_verified_without_a_word(units: Path) -> None:
    done = analyze("verify", "--recursive-errors=yes", "--man=no", *sorted(str(path) for path in units.iterdir()))
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@needs_systemd
def test_a_unit_with_an_unknown_key_is_found(units: Path) -> None:
    # The control of the test above.
    unit = units / "session-reconciler.service"
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nProtectEverything=yes"))
    assert 0 != analyze("verify", "--recursive-errors=yes", "--man=no", str(unit)).returncode


@needs_systemd
@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(units: Path, name: str) -> None:
    unit = units / name.replace("@.", "@one.")
    done = analyze("security", "--offline=true", f"--threshold={round(EXPOSURE_MAX * 10)}", "--no-pager", str(unit))
    assert 0 == done.returncode, done.stdout[-300:]


def section(name: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", ["session-reconciler.service", "session-reconciler@.service"])
def test_the_units_agree_with_the_program(name: str) -> None:
    unit = section(name)
    assert ["notify"] == unit["Type"]
    assert [str(daemon.EXIT_HURRIED)] == unit["SuccessExitStatus"]
    # A stop that the program cuts short itself comes before the one that systemd would.
    assert float(unit["TimeoutStopSec"][0]) > DEFAULT_DAEMON.stop_s
    assert "run" in unit["ExecStart"][0].split()


def test_the_timer_starts_the_service_that_is_there() -> None:
    assert "session-reconciler-once.service" in UNITS
    timer = section("session-reconciler-once.timer")
    assert ["yes"] == timer["Persistent"]
    assert ["oneshot"] == section("session-reconciler-once.service")["Type"]


def test_the_example_configuration_holds_the_defaults_and_is_valid(tmp_path: Path) -> None:
    file = DEPLOY / "examples" / "config.toml"
    settings = load(Flags(config=str(file)), {"HOME": str(tmp_path)})
    assert DEFAULT_DAEMON == settings.daemon
    assert DEFAULT_LIMITS == settings.limits
    # What is commented out is valid too.
    shown = re.sub(r"^#(?=[\[a-z])", "", file.read_text(), flags=re.MULTILINE)
    copy = tmp_path / "config.toml"
    copy.write_text(shown)
    assert ["nightly-report"] == [job.name for job in load(Flags(config=str(copy)), {"HOME": str(tmp_path)}).jobs]
    assert set(tomllib.loads(file.read_text())) <= {"log", "daemon", "limits"}


def test_the_example_environment_names_known_variables() -> None:
    text = (DEPLOY / "examples" / "reconciler.env").read_text()
    named = set(re.findall(r"^#?(RECONCILER_[A-Z_]+)=", text, flags=re.MULTILINE))
    assert named
    assert named <= set(environment_variables())


def test_user_and_folders_are_those_of_the_units() -> None:
    unit = section("session-reconciler.service")
    user = unit["User"][0]
    assert f"u {user} " in (DEPLOY / "sysusers.d" / "session-reconciler.conf").read_text()
    assert (
        f"/var/lib/{unit['StateDirectory'][0]} 0700 {user} {user}"
        in (DEPLOY / "tmpfiles.d" / "session-reconciler.conf").read_text()
    )


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed")
def test_sysusers_and_tmpfiles_are_understood(tmp_path: Path) -> None:
    for tool, folder in (("systemd-sysusers", "sysusers.d"), ("systemd-tmpfiles", "tmpfiles.d")):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
        root = tmp_path / folder
        (root / "etc").mkdir(parents=True)
        arguments = ["--create"] if tool == "systemd-tmpfiles" else []
        file = DEPLOY / folder / "session-reconciler.conf"
        if tool == "systemd-tmpfiles":
            (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nsession-reconciler:x:999:999::/:/bin/false\n")
            (root / "etc/group").write_text("root:x:0:\nsession-reconciler:x:999:\n")
        done = subprocess.run(
            [tool, f"--root={root}", *arguments, str(file)], capture_output=True, text=True, timeout=30, check=False
        )
        assert "nknown" not in done.stderr
        assert "nvalid" not in done.stderr
        if tool == "systemd-sysusers":
            assert "session-reconciler" in (root / "etc/passwd").read_text()
        else:
            assert (root / "var/lib/session-reconciler").is_dir()


def test_the_page_names_every_file_that_is_shipped() -> None:
    page = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.name != "README.md":
            relative = path.relative_to(DEPLOY)
            assert str(relative) in page or f"{relative.parent}/" in page, f"{relative} is not on the page"
    named = re.findall(r"`((?:systemd|examples|postgresql|prometheus)/[\w@.-]+)`", page)
    assert all((DEPLOY / name).is_file() for name in named)


def test_unit_files_have_the_form_of_unit_files() -> None:
    # For machines without systemd: sections and assignments, nothing else.
    for name in UNITS:
        parser = configparser.RawConfigParser(strict=False, allow_no_value=False, delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string((DEPLOY / "systemd" / name).read_text())
        assert "Unit" in parser.sections()

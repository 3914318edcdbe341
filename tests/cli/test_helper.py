"""The resident helper and its clients as processes: started, raced, killed, replaced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest

import mulligan
from mulligan.coding.hooks import session_of
from mulligan.resident import place
from mulligan.resident.health import stopped_helper
from mulligan.resident.install import HOOK, install_client, is_current
from mulligan.resident.serving import ServedAgent
from mulligan.resident.version import version
from tests.children import end_processes_in
from tests.coding_agent import CodingAgent
from tests.nobody import as_nobody, place_of_nobody

PATIENCE = 120.0
MULLIGAN = (sys.executable, "-c", "from mulligan.cli.entry import main; main()")
LANGUAGES = [
    "Python",
    pytest.param(
        "C", marks=pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    ),
]


class Installed:
    """An agent whose hooks run a client of the helper."""

    def __init__(self, home: Path, language: str) -> None:
        self.agent = CodingAgent(home)
        self.agent.make_store()
        self.state = home / "state" / "mulligan"
        self.directory = place.helper_directory(self.state)
        compiler = None if language == "C" else ""
        made = install_client(self.state, version(), [*MULLIGAN, *HOOK], compiler=compiler)
        assert made.language == language
        self.client = str(made.path)

    def hook(self, event: str, *options: str, **fields: str) -> subprocess.CompletedProcess[bytes]:
        """Run a hook as the agent does."""
        return subprocess.run(
            [self.client, "claude", *options],
            input=self.agent.json(event, **fields),
            env=self.agent.variables,
            cwd=self.agent.project,
            capture_output=True,
            timeout=PATIENCE,
        )

    def start(self, script: str = "") -> subprocess.Popen[bytes]:
        """Start a helper, after a script that changes it; return once it listens."""
        code = f"{script}\nimport sys, pathlib\nfrom mulligan.resident.__main__ import main\n"
        code += "sys.exit(main(pathlib.Path(sys.argv[1])))"
        command = [sys.executable, "-c", code, str(self.state)]
        helper = subprocess.Popen(command, env=self.agent.variables, cwd=self.directory)
        wait_for(lambda: self.listens() or helper.poll() is not None)
        return helper

    def listens(self) -> bool:
        """Whether a helper answers at the socket."""
        # By a descriptor: the path may be too long for the address of a socket.
        here = os.open(self.directory, os.O_RDONLY)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"/proc/self/fd/{here}/{place.SOCKET}")
            return True
        except OSError:
            return False
        finally:
            os.close(here)

    def prompts(self) -> list[str | None]:
        """Return the notes of the checkpoints that prompts have."""
        return [one.note for one in self.agent.session().checkpoints() if one.kind == "prompt"]


@pytest.fixture(params=LANGUAGES)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installed]:
    yield Installed(tmp_path, request.param)
    end_processes_in(tmp_path)


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_first_hook_works_alone_and_starts_the_helper_for_the_next(
    installed: Installed,
) -> None:
    done = installed.hook("UserPromptSubmit", prompt="one")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert installed.prompts() == ["one"]
    wait_for(installed.listens)
    # No fresh process may help from now on.
    (installed.agent.home / "gone").mkdir()
    installed.hook("UserPromptSubmit", prompt="two")
    assert installed.prompts() == ["one", "two"]
    assert installed.agent.notes() == ""


def test_the_helper_knows_the_process_of_an_agent_that_does_not_name_it(
    installed: Installed,
) -> None:
    helper = installed.start()
    variables = {k: v for k, v in installed.agent.variables.items() if k != "CLAUDE_PID"}
    subprocess.run(
        [installed.client, "codex"],
        input=installed.agent.json("UserPromptSubmit", prompt="one", turn_id="t"),
        env=variables,
        cwd=installed.agent.project,
        timeout=PATIENCE,
    )
    with mulligan.open(installed.agent.make_store(), create=False) as store:
        session = store.session(session_of("codex", installed.agent.id), create=False)
        lease = session.internal.lease_of("codex")
    assert lease is not None
    assert lease.holder.process == os.getpid()
    helper.terminate()
    assert helper.wait(PATIENCE) == 0


def test_the_helper_answers_with_decisions(installed: Installed) -> None:
    rule = '[[effects.rules]]\nname = "Bash(rm *)"\napproval = "deny"\n'
    (installed.agent.make_store() / "config.toml").write_text(rule)
    helper = installed.start()
    call = {"tool_name": "Bash", "tool_input": {"command": "rm -rf /"}, "tool_use_id": "t1"}
    done = installed.hook("PreToolUse", **call)  # type: ignore[arg-type]
    assert b'"permissionDecision":"deny"' in done.stdout
    helper.send_signal(signal.SIGTERM)
    assert helper.wait(PATIENCE) == 0
    assert not (installed.directory / place.SOCKET).exists()


KILLED_BEFORE = """
import os, signal
from mulligan.coding import hooks
hooks.HookRunner.handle = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_AFTER = """
import os, signal
from mulligan.coding import hooks
was = hooks.HookRunner.handle
def handle(self, *given):
    was(self, *given)
    os.kill(os.getpid(), signal.SIGKILL)
hooks.HookRunner.handle = handle
"""


@pytest.mark.parametrize("script", [KILLED_BEFORE, KILLED_AFTER], ids=["before", "after"])
def test_an_event_is_recorded_once_when_its_helper_is_killed(
    installed: Installed, script: str
) -> None:
    helper = installed.start(script)
    done = installed.hook("UserPromptSubmit", prompt="one")
    assert helper.wait(PATIENCE) == -signal.SIGKILL
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert installed.prompts() == ["one"]
    state = installed.agent.session().state.get("agent_session")
    assert state["prompts"] == 1
    installed.hook("UserPromptSubmit", prompt="two")
    assert installed.prompts() == ["one", "two"]


STUCK = """
import os, signal
from mulligan.coding import hooks
hooks.HookRunner.handle = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.fixture
def impatient(installed: Installed) -> Installed:
    """Clients that wait one second for the helper."""
    client = Path(installed.client)
    if client.read_bytes().startswith(b"#!"):
        client.write_text(client.read_text().replace("SECONDS = 20.0", "SECONDS = 1.0"))
        return installed
    source = files("mulligan.resident").joinpath("client.c").read_text()
    assert "#define SECONDS 20\n" in source
    command = ", ".join(f'"{word}"' for word in [*MULLIGAN, *HOOK])
    head = f'#define DIRECTORY "{installed.directory}"\n#define VERSION "{version()}"\n'
    head += f"#define COMMAND {command}\n"
    code = head + source.replace("#define SECONDS 20\n", "#define SECONDS 1\n")
    words = ["cc", "-x", "c", "-o", str(client), "-"]
    subprocess.run(words, input=code.encode(), check=True, timeout=PATIENCE)
    return installed


def test_a_hook_does_without_a_helper_that_is_stuck(impatient: Installed) -> None:
    helper = impatient.start(STUCK)
    impatient.hook("UserPromptSubmit", prompt="one")
    assert impatient.prompts() == ["one"]
    impatient.hook("UserPromptSubmit", prompt="two")
    assert impatient.prompts() == ["one", "two"]
    assert stopped_helper(impatient.state) == helper.pid
    doctor = subprocess.run(
        [*MULLIGAN, "doctor"],
        env=impatient.agent.variables,
        cwd=impatient.agent.project,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert f"process {helper.pid}, is stopped".encode() in doctor.stdout
    helper.kill()
    helper.wait(PATIENCE)
    assert stopped_helper(impatient.state) is None
    assert impatient.prompts() == ["one", "two"]


def test_a_helper_that_was_only_slow_records_nothing_twice(impatient: Installed) -> None:
    helper = impatient.start()
    os.kill(helper.pid, signal.SIGSTOP)
    impatient.hook("UserPromptSubmit", prompt="one")
    impatient.hook("UserPromptSubmit", prompt="two")
    assert impatient.prompts() == ["one", "two"]
    os.kill(helper.pid, signal.SIGCONT)
    impatient.hook("UserPromptSubmit", prompt="three")
    assert impatient.prompts() == ["one", "two", "three"]
    helper.terminate()
    assert helper.wait(PATIENCE) == 0


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.02, 0.04, 0.08])
def test_a_helper_that_is_told_to_end_in_the_middle_loses_nothing(
    installed: Installed, delay: float
) -> None:
    helper = installed.start()
    (installed.agent.project / "large").write_bytes(os.urandom(1 << 20))
    with ThreadPoolExecutor() as pool:
        hook = pool.submit(installed.hook, "UserPromptSubmit", prompt="one")
        # Not for an event, but to try different moments; whichever it is, the event is recorded.
        threading.Event().wait(delay)
        helper.terminate()
        assert hook.result(PATIENCE).returncode == 0
    assert helper.wait(PATIENCE) == 0
    assert installed.prompts() == ["one"]
    assert installed.agent.notes() == ""


BRIEF = """
import mulligan.resident.server as server
server.LOOK_SECONDS = 0.01
server.Helper.is_unneeded = lambda self: not self.serve_one(0.01)
"""


def test_a_client_that_comes_when_the_helper_ends_is_recorded_once(installed: Installed) -> None:
    for number in range(10):
        helper = installed.start(BRIEF)
        installed.hook("UserPromptSubmit", prompt=str(number))
        helper.wait(PATIENCE)
    assert installed.prompts() == [str(number) for number in range(10)]


def test_of_two_helpers_that_start_at_once_one_serves(installed: Installed) -> None:
    command = [sys.executable, "-m", "mulligan.resident", str(installed.state)]
    env = installed.agent.variables
    helpers = [subprocess.Popen(command, env=env, cwd=installed.directory) for _ in range(4)]
    wait_for(lambda: sum(helper.poll() is not None for helper in helpers) == 3)
    assert [helper.wait() for helper in helpers if helper.poll() is not None] == [0, 0, 0]
    wait_for(installed.listens)
    installed.hook("UserPromptSubmit", prompt="one")
    assert installed.prompts() == ["one"]
    for helper in helpers:
        helper.terminate()
        helper.wait(PATIENCE)


def test_hooks_that_race_to_start_the_helper_record_every_event_once(
    installed: Installed,
) -> None:
    hooks = [
        subprocess.Popen(
            [installed.client, "claude"],
            stdin=subprocess.PIPE,
            env=installed.agent.variables,
            cwd=installed.agent.project,
        )
        for _ in range(4)
    ]
    for number, hook in enumerate(hooks):
        assert hook.stdin is not None
        hook.stdin.write(installed.agent.json("UserPromptSubmit", prompt=str(number)))
        hook.stdin.close()
    assert [hook.wait(PATIENCE) for hook in hooks] == [0] * 4
    assert sorted(str(note) for note in installed.prompts()) == ["0", "1", "2", "3"]
    wait_for(installed.listens)


def test_a_socket_of_a_dead_helper_is_no_obstacle(installed: Installed) -> None:
    helper = installed.start()
    helper.kill()
    helper.wait(PATIENCE)
    assert (installed.directory / place.SOCKET).exists()
    installed.hook("UserPromptSubmit", prompt="one")
    assert installed.prompts() == ["one"]
    wait_for(installed.listens)


def test_a_client_of_another_version_replaces_helper_and_client(tmp_path: Path) -> None:
    installed = Installed(tmp_path, "Python")
    helper = installed.start()
    install_client(installed.state, "0.0.1 /elsewhere", [*MULLIGAN, *HOOK], compiler="")
    assert not is_current(installed.state, version())
    installed.hook("UserPromptSubmit", prompt="one")
    assert helper.wait(PATIENCE) == 0
    assert installed.prompts() == ["one"]
    assert is_current(installed.state, version())  # the fresh process wrote it
    wait_for(installed.listens)
    installed.hook("UserPromptSubmit", prompt="two")
    assert installed.prompts() == ["one", "two"]
    end_processes_in(tmp_path)


def listen_as_nobody(path: Path, writing: int) -> None:
    """Let a process of another user accept one connection, and tell what came over it."""

    def listen() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o777)
        if os.fork():
            return
        # Nothing else stays open, or the test would wait for the end of this process.
        for descriptor in set(range(3, 1024)) - {listener.fileno(), writing}:
            with suppress(OSError):
                os.close(descriptor)
        os.write(writing, b"got " + listener.accept()[0].recv(1000))
        os._exit(0)

    as_nobody(listen)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_socket_of_another_user_gets_nothing(language: str) -> None:
    with place_of_nobody() as home:
        os.chown(home, 0, 0)
        home.chmod(0o755)
        installed = Installed(home, language)
        for directory in (home / "state", installed.state, installed.directory):
            directory.chmod(0o777)
        reading, writing = os.pipe()
        listen_as_nobody(installed.directory / place.SOCKET, writing)
        os.close(writing)
        installed.hook("UserPromptSubmit", prompt="secret")
        assert os.read(reading, 1000) == b"got "
        os.close(reading)
        assert installed.prompts() == ["secret"]
        end_processes_in(home)


def test_without_a_helper_and_without_mulligan_the_person_is_told(installed: Installed) -> None:
    text = Path(installed.client)
    compiler = "" if text.read_bytes().startswith(b"#!") else None
    install_client(installed.state, version(), ["/nonexistent/mulligan"], compiler=compiler)
    done = installed.hook("Stop")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    for event in ("SessionStart", "UserPromptSubmit"):
        done = installed.hook(event)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "moved or removed" in json.loads(done.stdout)["systemMessage"]


BESIDE = "--unless-served"


def test_a_client_beside_a_server_does_nothing_while_it_is_there(installed: Installed) -> None:
    agent = ServedAgent(installed.state, os.getpid())
    agent.take()
    done = installed.hook("UserPromptSubmit", BESIDE, prompt="served")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    installed.hook("UserPromptSubmit", prompt="one")  # without the word, it is as any other
    assert installed.prompts() == ["one"]
    wait_for(installed.listens)
    installed.hook("UserPromptSubmit", BESIDE, prompt="served")
    agent.release()
    installed.hook("UserPromptSubmit", BESIDE, prompt="two")
    end_processes_in(installed.directory)  # the helper
    installed.hook("UserPromptSubmit", BESIDE, prompt="three")
    assert installed.prompts() == ["one", "two", "three"]
    assert installed.agent.notes() == ""


def test_a_client_beside_a_server_reads_its_whole_input(installed: Installed) -> None:
    """Claude Code takes a hook for one that failed if its input was closed too early."""
    agent = ServedAgent(installed.state, os.getpid())
    agent.take()
    words = [installed.client, "claude", BESIDE]
    client = subprocess.Popen(
        words, stdin=subprocess.PIPE, env=installed.agent.variables, cwd=installed.agent.project
    )
    assert client.stdin is not None
    client.stdin.write(b"x" * 5_000_000)  # a broken pipe would raise
    client.stdin.close()
    assert client.wait(PATIENCE) == 0
    agent.release()


@pytest.mark.parametrize("named", [None, "", "x", "../7", "-1", "0x10"])
def test_an_agent_that_is_not_named_is_the_process_above(
    installed: Installed, named: str | None
) -> None:
    variables = installed.agent.variables
    del variables["CLAUDE_PID"]
    if named is not None:
        variables["CLAUDE_PID"] = named
    agent = ServedAgent(installed.state, os.getpid())
    agent.take()
    done = installed.hook("UserPromptSubmit", BESIDE, prompt="served")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    agent.release()
    installed.hook("UserPromptSubmit", BESIDE, prompt="one")
    assert installed.prompts() == ["one"]


def test_an_agent_beside_a_served_one_is_not_served(installed: Installed) -> None:
    other = ServedAgent(installed.state, os.getppid())
    other.take()
    installed.hook("UserPromptSubmit", BESIDE, prompt="one")
    assert installed.prompts() == ["one"]
    other.release()


def test_a_program_with_a_strange_name_is_found_by_its_start(installed: Installed) -> None:
    """Its name stands in the line of numbers that tells when it started."""
    renamed = "import sys; open('/proc/self/comm', 'w').write('a) S 1 (b')"
    waits = [sys.executable, "-c", f"{renamed}; print(flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(waits, stdin=pipe, stdout=pipe) as named:
        assert named.stdout is not None
        named.stdout.readline()
        installed.agent.variables["CLAUDE_PID"] = str(named.pid)
        agent = ServedAgent(installed.state, named.pid)
        agent.take()
        installed.hook("UserPromptSubmit", BESIDE, prompt="served")
        agent.release()
        installed.hook("UserPromptSubmit", BESIDE, prompt="one")
        assert installed.prompts() == ["one"]


def test_a_fresh_process_beside_a_server_does_nothing_while_it_is_there(tmp_path: Path) -> None:
    agent = CodingAgent(tmp_path)
    agent.make_store()
    server = ServedAgent(tmp_path / "state" / "mulligan", os.getpid())

    def hook(prompt: str) -> None:
        done = subprocess.run(
            [*MULLIGAN, "hook", "claude", BESIDE],
            input=agent.json("UserPromptSubmit", prompt=prompt),
            env=agent.variables,
            cwd=agent.project,
            capture_output=True,
            timeout=PATIENCE,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    hook("one")
    server.take()
    hook("served")
    server.release()
    hook("two")
    assert [one.note for one in agent.session().checkpoints()] == ["one", "two"]


def test_a_large_event_and_strange_paths_get_through(tmp_path: Path) -> None:
    home = tmp_path / 'a "quoted" dir\\é' / ("long" * 30)
    home.mkdir(parents=True)
    for language in ("C", "Python") if shutil.which("cc") else ("Python",):
        installed = Installed(home, language)
        helper = installed.start()
        installed.hook("UserPromptSubmit", prompt=f"{language} {'x' * 3_000_000}")
        assert installed.prompts()[-1].startswith(language)  # type: ignore[union-attr]
        helper.terminate()
        assert helper.wait(PATIENCE) == 0
    end_processes_in(home)

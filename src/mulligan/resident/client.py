"""The client of the resident helper, for ``python -I -S``.

It imports nothing of Mulligan, and of Python only what the interpreter has loaded or built in:
starting it costs little more than starting Python. It reads a hook's JSON from standard input and
prints the reply. When there is no helper, it becomes the command that handles hooks by itself.

``install`` writes it into the helper's directory with the three values below filled in.
"""

import _socket
import posix
import sys

DIRECTORY = ""
VERSION = ""
COMMAND: list[str] = []

MAGIC = b"mulligan-hook-1"
SECONDS = 20.0
"""How long the helper may take; the agent waits longer than that for a hook."""

LATE = ["--budget", "8"]
"""Options of the command after the helper took too long: the rest of the agent's patience."""

BESIDE_SERVER = "--unless-served"
"""The option of a command beside a call of the MCP server: do nothing if it handles the event."""

GONE = (
    b'{"systemMessage":"Mulligan records nothing: it was moved or removed. Install it again and '
    b'run `mulligan install claude`, or remove its hooks from your settings."}'
)
"""What Claude Code shows to the person when Mulligan itself cannot be run."""

SHOWN = (b'"SessionStart"', b'"UserPromptSubmit"')
"""By what the events are known at which that is said: those at which a person looks."""

PREFIXES = (b"MULLIGAN_", b"CLAUDE_", b"CODEX_", b"GEMINI_", b"OPENCODE_")
NAMES = (b"HOME", b"PATH", b"XDG_STATE_HOME")
SO_PEERCRED = 17


def main() -> None:
    """Send the event to the helper, or handle it in another way."""
    given = sys.argv[1:] or ["claude"]
    words = [word for word in given if word != BESIDE_SERVER]
    parts = []
    while part := posix.read(0, 1 << 16):
        parts.append(part)
    # Read in any case: the agent takes a hook that closes its input early for one that failed.
    data, id = b"".join(parts), posix.urandom(16).hex()
    if words != given and is_served():
        return
    here = posix.open(".", posix.O_RDONLY)
    try:
        reply = asked(words, id, data)
    except TimeoutError:
        # It may be stopped, or end before it has recorded the event. If it is only slow, the id
        # says that the event is the same.
        reply, words = None, [*words, *LATE]
    if reply is None:
        posix.fchdir(here)
        fall_back(words, id, data)
    elif reply:
        posix.write(1, reply)


def is_served() -> bool:
    """Whether an MCP server handles the hooks of this agent: then it holds a lock."""
    named = posix.environ.get(b"CLAUDE_PID", b"")
    pid = named if named.isdigit() else b"%d" % posix.getppid()
    name = b"%s/served-%s-%s" % (DIRECTORY.encode("utf-8", "surrogateescape"), pid, started(pid))
    flags = posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK
    try:
        file = posix.open(name, flags)
    except OSError:
        return False
    try:
        posix.lockf(file, posix.F_TEST, 0)
    except OSError as error:
        return error.errno in (11, 13)  # EAGAIN, EACCES; others: no lock can be held here
    return False


def started(pid: bytes) -> bytes:
    """Return when a process started, as ``/proc`` has it; "0" if that is unknown."""
    try:
        stat = posix.read(posix.open(b"/proc/%s/stat" % pid, posix.O_RDONLY), 4096)
    except OSError:
        return b"0"
    return stat.rpartition(b")")[2].split()[19]


def asked(words: list[str], id: str, data: bytes) -> "bytes | None":
    """Return the helper's reply; None if there is no helper; raises ``TimeoutError``."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.settimeout(SECONDS)
    try:
        # A relative path: an absolute one may be too long for the address of a socket.
        posix.chdir(DIRECTORY)
        connection.connect("socket")
        peer = connection.getsockopt(_socket.SOL_SOCKET, SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) != posix.geteuid():
            return None  # a socket of another user gets nothing
        connection.sendall(request(words, id) + data)
        connection.shutdown(_socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    except TimeoutError:
        raise
    except OSError:
        return None
    reply = b"".join(parts)
    return reply[1:] if reply[:1] == b"k" else None


def request(words: list[str], id: str) -> bytes:
    """Return the beginning of a request; the JSON follows it."""
    agent, *options = [word.encode("utf-8", "surrogateescape") for word in words]
    texts = [MAGIC, VERSION.encode(), id.encode(), agent, b" ".join(options)]
    for name, value in posix.environ.items():
        if name in NAMES or name.startswith(PREFIXES):
            texts.append(name + b"=" + value)
    return b"\0".join([*texts, b"", b""])


def fall_back(words: list[str], id: str, data: bytes) -> None:
    """Become the command that handles a hook in a fresh process, with the JSON as its input."""
    file = posix.memfd_create("hook")
    view = memoryview(data)
    while view:
        view = view[posix.write(file, view) :]
    posix.lseek(file, 0, 0)
    posix.dup2(file, 0)
    variables = {**posix.environ, b"MULLIGAN_HOOK_ID": id.encode()}
    try:
        posix.execve(COMMAND[0], [*COMMAND, *words], variables)
    except OSError:
        # Mulligan was removed. The agent is not to be disturbed by that; the person is told.
        if words[0] == "claude" and any(event in data for event in SHOWN):
            posix.write(1, GONE)


if __name__ == "__main__":
    main()

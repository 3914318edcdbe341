"""Under a limit on memory the journal takes a smaller map, and a larger one as it grows."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import mulligan
from mulligan.errors import MemoryLimit
from mulligan.journal.lmdb.map_size import MAP_SIZE, MIN_ROOM_BYTES, map_sizes, needs_growth
from mulligan.journal.lmdb.tables import LmdbTables

GIB = 1 << 30


def limited(limit: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command whose address space is limited."""
    wrapper = (
        "import os, resource, sys; limit = int(sys.argv[1]); "
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); "
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    return subprocess.run(
        [sys.executable, "-c", wrapper, str(limit), *command],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_commands_work_under_a_limit(tmp_path: Path) -> None:
    base = [sys.executable, "-m", "mulligan", "--store", str(tmp_path)]
    mulligan.open(tmp_path).close()
    (tmp_path / "file").write_text("content")
    for command in (
        ["state", "set", "--create", "x", "1"],
        ["checkpoint", "--label", "one"],
        ["log"],
        ["status"],
        ["verify"],
    ):
        done = limited(2 * GIB, [*base, *command])
        assert done.returncode == 0, done.stderr
    with mulligan.open(tmp_path) as store:
        assert store.session("main").state.get("x") == 1


GROWING = """
    import os, sys
    import mulligan
    from mulligan.journal.lmdb import map_size
    map_size.FRACTION_OF_LIMIT = 1 << 20  # so that there is nothing but the least map
    store = mulligan.open(sys.argv[1])
    session = store.session("run")
    for part in range(6):
        with session.batch():
            for number in range(1_500):
                session.state.set(("noise", str(number)), os.urandom(2_500))
    session.state.set("last", 1)
    assert os.stat(store.path + "/journal/data.mdb").st_size > map_size.MIN_ROOM_BYTES
    print(store.verify(full=False).ok)
    store.close()
"""


@pytest.mark.timeout(600)
def test_a_map_grows_with_the_journal(tmp_path: Path) -> None:
    done = limited(2 * GIB, [sys.executable, "-c", textwrap.dedent(GROWING), str(tmp_path)])
    assert (done.stdout, done.stderr) == ("True\n", "")


OUTGROWN = """
    import sys
    import mulligan
    from mulligan.journal.lmdb import map_size
    map_size.FRACTION_OF_LIMIT = 1 << 20
    store = mulligan.open(sys.argv[1])
    session = store.session("run")
    print("ready", flush=True)
    sys.stdin.readline()
    assert session.state.get("x") == 1
    session.state.set("y", 2)
    print("done", flush=True)
    store.close()
"""


def test_a_map_that_another_process_has_outgrown_is_taken_anew(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB}))\n"
    with subprocess.Popen(
        [sys.executable, "-c", limit + textwrap.dedent(OUTGROWN), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        fill(tmp_path / ".mulligan/journal", 2 * MIN_ROOM_BYTES)
        with mulligan.open(tmp_path) as store:
            store.session("run").state.set("x", 1)
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "done\n"
        assert child.wait() == 0
    with mulligan.open(tmp_path) as store:
        assert store.session("run").state.get("") == {"x": 1, "y": 2}


def fill(journal: Path, size: int) -> None:
    """Make a journal so large, with records that no reader looks at."""
    tables = LmdbTables(journal)
    with tables.write() as writer:
        for number in range(size // 100_000 + 1):
            writer.put("meta", b"noise %d" % number, bytes(100_000))
    tables.close()


def test_a_process_can_have_hundreds_of_stores_open(tmp_path: Path) -> None:
    """With a terabyte for each, there is room for 127 on x86-64."""
    code = """
        import mulligan, resource
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 4096), limit))
        stores = [mulligan.open(str(number)) for number in range(200)]
        for store in stores:
            store.session("run").state.set("x", 1)
        print(len(stores), {store.session("run").state.get("x") for store in stores})
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "200 {1}\n"


def test_too_little_memory_is_said_with_the_limit(tmp_path: Path) -> None:
    mulligan.open(tmp_path).close()
    code = """
        import resource, sys
        import mulligan, mulligan.opener
        from mulligan.errors import MemoryLimit
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = used + (8 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            mulligan.open(sys.argv[1])
        except MemoryLimit as error:
            print(error, "/", error.hint)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "MiB of address space" in done.stdout
    assert "the limit is" in done.stdout
    assert "ulimit -v" in done.stdout
    assert MemoryLimit.exit_code == 25


def test_sizes_are_tried_from_the_largest_down_to_what_the_file_needs(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    file.write_bytes(bytes(10 << 20))
    sizes = list(map_sizes(file, read_only=False))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    assert limit != resource.RLIM_INFINITY or sizes[0] == MAP_SIZE
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] >= (10 << 20) + MIN_ROOM_BYTES
    assert list(map_sizes(file, read_only=True))[-1] < 12 << 20
    assert not needs_growth(sizes[-1], 10 << 20)
    assert needs_growth(sizes[-1], sizes[-1] - (1 << 20))

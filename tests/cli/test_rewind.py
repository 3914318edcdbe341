"""mulligan rewind: prompts, plans, both branches, and mistakes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import mulligan
from mulligan.coding.transcripts.transcript_format import encode
from tests.cli.conftest import Cli
from tests.contract import documented
from tests.unit.coding.claude_entries import OLD
from tests.unit.coding.recorded import Recorded


@pytest.fixture
def agent(place: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """An agent that had three prompts in ``work``, where the command stands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place / "config"))
    (place / "work").mkdir()
    monkeypatch.chdir(place / "work")
    assert cli("init").code == 0
    (place / "work").joinpath("a.txt").unlink(missing_ok=True)
    made = Recorded(place, mulligan.open(place / "work"))
    made.turn("first words", "a.txt", "one")
    made.turn("second words", "b.txt", "two")
    made.turn("third words", "a.txt", "three")
    made.session.close()
    made.store.close()
    return made


def files(work: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in work.iterdir() if one.name != ".mulligan"}


def resumed(command: str) -> str:
    """Return the id in what is to be typed."""
    words = shlex.split(command)
    return words[words.index("--resume") + 1]


def test_prompts_are_listed_with_what_changed(agent: Recorded, cli: Cli):
    said = cli("rewind")
    assert said.code == 0, said.err
    rows = [line.split() for line in said.out.splitlines()[1:4]]
    # The time has a date in between, unless the test runs on the day of the transcript.
    assert [(row[0], *row[-3:]) for row in rows] == [
        ("1", "+1", "first", "words"),
        ("2", "+1", "second", "words"),
        ("3", "~1", "third", "words"),
    ]
    assert cli("rewind", "-q").out.split() == ["1", "2", "3"]


def test_prompts_without_hooks_lead_to_doctor(agent: Recorded, cli: Cli):
    assert "doctor" not in cli("rewind").out
    agent.said.prompt("without hooks")
    agent.path.write_bytes(encode(agent.said.entries))
    shown = cli("rewind").out.splitlines()
    assert "unknown  without hooks" in shown[4]
    assert shown[5].endswith("`mulligan doctor` checks them.")


def test_a_restore_counts_what_hooks_recorded(agent: Recorded, cli: Cli):
    shown = cli("restore", "@latest~3", "--dry-run").out
    assert "conversation  entries of the conversation: " in shown
    assert "agent_session  how far its transcript was read: " in shown
    assert "agent_session/" not in shown
    assert "agent_session/offset" in cli("restore", "@latest~3", "--dry-run", "--verbose").out


def test_finished_conversations_are_counted(agent: Recorded, cli: Cli):
    for number in range(12):
        with mulligan.open(agent.work) as store:
            store.copy(agent.session.name, f"claude-copy-{number}").close()
            store.session(f"claude-copy-{number}", actor="claude").agent.update(state="done")
    shown = cli("status").out
    assert "  and 12 finished conversations, the last " in shown
    assert "claude-copy-3" not in shown
    assert "claude-copy-3" in cli("status", "--all").out
    assert len(cli("status", "--json").json["sessions"]) == 14
    with mulligan.open(agent.work) as store:
        store.session("claude-copy-3", actor="claude").agent.update(state="working")
    assert "claude-copy-3" in cli("status").out


def test_while_main_is_empty_the_newest_conversation_here_is_meant(agent: Recorded, cli: Cli):
    made = f"claude-{resumed(cli('rewind', '--to', '2', '--yes', '--json').json['command'])}"
    with mulligan.open(agent.work) as store:
        store.session(made).state.set("context/later", 1)
    for command in ("log", "show", "diff @latest"):
        said = cli(*command.split()).err
        assert f"Using session {made}, the newest of a coding agent; -s NAME" in said
    assert f"current session: {made}," in cli("status").out
    cli("checkpoint", "-s", "main")
    assert cli("log", "--json").json["session"] == "main"


def test_a_plan_fits_and_names_the_directory_plainly(agent: Recorded, cli: Cli):
    said = cli("rewind", "--to", "2", "--dry-run", "--fork", "../other-way")
    conversation, fork = said.out.splitlines()[1:3]
    assert conversation.startswith("conversation  1 prompt stays, new id ")
    assert len(conversation) <= 80
    assert fork.endswith(f" into {agent.work.parent / 'other-way'}")


def test_prompts_as_json(agent: Recorded, cli: Cli):
    found = cli("rewind", "--json").json
    assert set(found) == documented("Prompts")
    assert found["agent_session"] == OLD
    first = found["prompts"][0]
    assert (first["number"], first["text"]) == (1, "first words")
    assert [change["path"] for change in first["files"]] == ["a.txt"]


def test_a_fork_of_a_git_worktree_says_that_git_is_shared(agent: Recorded, cli: Cli):
    assert "names" not in cli("rewind", "--to", "2", "--fork", "../without-git").err
    git = agent.work.parent / "repository/.git/worktrees/work"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/work\n")
    (agent.work / ".git").write_text(f"gitdir: {git}\n")
    with mulligan.open(agent.work) as store:
        store.session(agent.session.name, workspace=agent.work).checkpoint()
    said = cli("rewind", agent.session.name, "--to", "@latest", "--fork", "../other-way")
    assert f"Warning: {agent.work.parent / 'other-way/.git'} names {git}, as in" in said.err


def test_a_dry_run_changes_nothing(agent: Recorded, cli: Cli):
    before = files(agent.work)
    said = cli("rewind", "--to", "2", "--dry-run")
    assert said.code == 0
    assert "before prompt 2" in said.out
    assert "- b.txt" in said.out
    found = cli("rewind", "--to", "2", "--dry-run", "--json").json
    assert (found["applied"], found["new_agent_session"], found["command"]) == (False, None, None)
    assert files(agent.work) == before
    assert [one.name for one in agent.path.parent.iterdir()] == [f"{OLD}.jsonl"]
    assert len(cli("status", "--json").json["sessions"]) == 2


def test_a_point_in_the_middle_of_a_turn_is_not_called_the_next_prompt(agent: Recorded, cli: Cli):
    taken = cli("log", "--json").json["entries"]
    third = next(at for at, one in enumerate(taken) if one["kind"] == "prompt")
    prompt, before = [one["checkpoint_id"] for one in taken[third : third + 2]]
    assert "before prompt 3" in cli("rewind", "--to", prompt, "--dry-run").out
    said = cli("rewind", "--to", before, "--dry-run").out
    assert said.startswith(f"back to  {agent.session.name} #")
    assert "2 prompts stay" in said


@pytest.mark.parametrize("both", [[], ["--both"]], ids=["by default", "asked for"])
def test_files_and_conversation_come_back(agent: Recorded, cli: Cli, both: list[str]):
    found = cli("rewind", "--to", "2", *both, "--json").json
    assert set(found) == documented("rewind")
    assert files(agent.work) == {"a.txt": "one"}
    assert found["command"] == f"claude --resume {found['new_agent_session']}"
    assert Path(found["transcript"]).is_file()
    assert found["prompt"]["text"] == "second words"
    # The new branch is the newest one now.
    assert cli("rewind", "--json").json["agent_session"] == found["new_agent_session"]
    assert len(cli("rewind", OLD[:8], "--json").json["prompts"]) == 3


def test_the_text_says_how_to_continue_and_how_to_go_back(agent: Recorded, cli: Cli):
    said = cli("rewind", "--to", "2").out
    assert "\n  claude --resume " in said
    assert f"`claude --resume {OLD}`" in said
    assert "`mulligan rewind --undo`" in said
    assert "safety checkpoint" in said


def test_undo_brings_the_files_back(agent: Recorded, cli: Cli):
    before = files(agent.work)
    cli("rewind", "--to", "1")
    assert files(agent.work) == {}
    found = cli("rewind", "--undo", "--json").json
    assert set(found) == documented("Undone")
    assert files(agent.work) == before
    assert found["command"] == f"claude --resume {OLD}"
    assert cli("rewind", "--json").json["agent_session"] == OLD
    again = cli("rewind", "--undo")
    assert (again.code, "no rewind to undo" in again.err) == (106, True)


STOPPED = """
import mulligan.opener
from mulligan.errors import DiskFull
from mulligan.failpoints import Failpoint
from mulligan.cli.main import main
from mulligan.testing.failpoints import fail_at

failpoint = fail_at(Failpoint.{point}, {error})
real = mulligan.opener.open_store
def open_store(path, variables, create, keep_env, clock, _, *rest, **more):
    return real(path, variables, create, keep_env, clock, failpoint, *rest, **more)
mulligan.opener.open_store = open_store
main()
"""


@pytest.fixture
def interrupted(agent: Recorded) -> str:
    """What a rewind to the second prompt says that Ctrl-C ends at its first file."""
    return stopped("RESTORE_RENAMED", "KeyboardInterrupt()", 130)


def stopped(point: str, error: str, code: int) -> str:
    """Return what a rewind to the second prompt says that fails at some point."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED.format(point=point, error=error), "rewind", "--to", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stderr


def test_ctrl_c_says_what_is_half_done(agent: Recorded, cli: Cli, interrupted: str):
    assert f"Interrupted: the files in {agent.work} are half restored." in interrupted
    program = f"mulligan -s claude-{OLD}"
    assert f"`{program} restore --continue` finishes it" in " ".join(interrupted.split())
    listed = cli("rewind")
    assert listed.code == 0
    assert "was interrupted: the files in" in listed.err
    assert "restore --abandon` leaves the files as they are" in " ".join(listed.err.split())


def test_a_disk_that_is_full_after_the_files_are_back_is_no_unchanged_file(agent: Recorded):
    said = " ".join(stopped("REWIND_NOTED", 'DiskFull("No space.")', 15).split())
    assert files(agent.work) == {"a.txt": "one"}
    assert "Files were restored before that." in said
    assert "No file was changed." not in said


def test_a_rewind_that_was_interrupted_is_undone(agent: Recorded, cli: Cli, interrupted: str):
    found = cli("rewind", "--undo", "--json").json
    assert found["safety"] is not None
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert "interrupted" not in cli("rewind").err


@pytest.mark.parametrize("way", ["--continue", "--abandon"])
def test_an_interrupted_rewind_that_was_ended_is_undone(
    agent: Recorded, cli: Cli, interrupted: str, way: str
):
    assert cli("-s", f"claude-{OLD}", "restore", way).code == 0
    assert "The files are as before the rewind." in cli("rewind", "--undo").out
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_an_interrupted_rewind_that_is_typed_again_is_undone_as_one(
    agent: Recorded, cli: Cli, interrupted: str
):
    assert cli("rewind", "--to", "2").code == 0
    assert files(agent.work) == {"a.txt": "one"}
    assert "The files are as before the rewind." in cli("rewind", "--undo").out
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert cli("rewind", "--undo").code == 0, "the first one was undone with it"
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_after_an_interrupted_rewind_one_to_another_prompt_is_undone_first(
    agent: Recorded, cli: Cli, interrupted: str
):
    assert cli("rewind", "--to", "1").code == 0
    assert cli("rewind", "--undo").code == 0
    assert files(agent.work) == {"a.txt": "one"}
    assert cli("rewind", "--undo").code == 0
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_an_interrupted_rewind_is_not_undone_without_its_files(
    agent: Recorded, cli: Cli, interrupted: str
):
    refused = cli("--no-files", "rewind", "--undo")
    assert refused.code != 0
    assert cli("rewind", "--undo").code == 0
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_undo_names_the_session_only_if_something_was_done_in_it(agent: Recorded, cli: Cli):
    cli("rewind", "--to", "2")
    unused = cli("rewind", "--undo").out
    assert "What was there is in the safety checkpoint" in unused
    assert "the session" not in unused
    made = cli("rewind", OLD, "--to", "2", "--json").json["new_session"]
    with mulligan.open(agent.work) as store:
        store.session(made, actor="claude").checkpoint("prompt")
    assert f"What was said since is in the session {made}." in cli("rewind", "--undo").out


def test_undo_of_a_conversation_alone_says_that_files_stay(agent: Recorded, cli: Cli):
    cli("rewind", "--to", "2", "--chat")
    assert "Undone. No file had to be taken back.\n" in cli("rewind", "--undo").out


def test_undo_of_a_fork_says_what_stays(agent: Recorded, cli: Cli, place: Path):
    made = cli("rewind", "--to", "2", "--fork", "../copy", "--json").json["new_session"]
    said = cli("rewind", "--undo")
    words = " ".join(said.out.split())
    assert f"Undone: claude-{OLD} goes on, on files that the fork never touched." in words
    assert f"The directory {place / 'copy'} and the session {made} stay" in words
    assert f"`mulligan delete {made}`" in words
    assert (place / "copy").is_dir()
    assert cli("delete", made, "--yes").code == 0


def test_undo_of_a_named_branch(agent: Recorded, cli: Cli):
    first = cli("rewind", OLD, "--to", "3", "--chat", "-q").out.strip()
    cli("rewind", OLD, "--to", "2", "--chat", "-q")
    assert cli("rewind", first, "--undo").code == 0
    left = [one.stem for one in agent.path.parent.glob("*.jsonl")]
    assert first not in left
    assert len(left) == 2


def test_a_prompt_without_files_says_whose_files_come_back(agent: Recorded, cli: Cli):
    with mulligan.open(agent.work) as store:
        session = store.session(agent.session.name, actor="claude")
        session.checkpoint("prompt", data={"event": "UserPromptSubmit", "prompt": 3})
        (seq, held) = session.head.seq, session.checkpoints()[-2]
    for options in ([], ["--files"], ["--fork", "../other"]):
        said = cli("rewind", "--to", "@latest", "--dry-run", *options)
        assert f"#{seq} of {agent.session.name} holds no files; those of #{held.seq}" in said.err
    assert "holds no files" not in cli("rewind", "--to", "@latest", "--dry-run", "--chat").err
    assert "holds no files" not in cli("rewind", "--to", "3", "--dry-run").err


def test_files_alone(agent: Recorded, cli: Cli):
    found = cli("rewind", "--to", "2", "--files", "--json").json
    assert files(agent.work) == {"a.txt": "one"}
    assert (found["command"], found["new_session"], found["entries"]) == (None, None, None)
    assert cli("undo", "-s", found["session"]).code == 0
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_undo_does_not_take_an_earlier_rewind_for_the_last_one(agent: Recorded, cli: Cli):
    made = cli("rewind", OLD, "--to", "3", "--chat", "-q").out.strip()
    cli("rewind", OLD, "--to", "2", "--files")
    refused = cli("rewind", "--undo")
    assert refused.code == 106
    assert f"`mulligan undo -s claude-{OLD}`" in refused.err
    assert any(one.stem == made for one in agent.path.parent.glob("*.jsonl"))
    assert cli("rewind", f"claude-{made}", "--undo").code == 0
    assert files(agent.work) == {"a.txt": "one"}


def test_the_conversation_alone(agent: Recorded, cli: Cli):
    found = cli("rewind", "--to", "2", "--chat", "--json").json
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert (found["files"], found["safety"]) == (None, None)
    assert Path(found["transcript"]).is_file()


def test_a_fork_continues_in_its_own_directory(agent: Recorded, cli: Cli, place: Path):
    found = cli("rewind", "--to", "3", "--fork", "../copy", "--json").json
    copy = place / "copy"
    assert files(copy) == {"a.txt": "one", "b.txt": "two"}
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    assert found["command"] == f"cd {copy} && claude --resume {found['new_agent_session']}"
    assert Path(found["transcript"]).parent.name.endswith("-copy")
    os.chdir(copy)
    assert cli("rewind", "--json").json["agent_session"] == found["new_agent_session"]
    status = cli("status", "--json").json
    assert status["current_session"] == found["new_session"]


def test_before_the_first_prompt_a_new_session_is_started(agent: Recorded, cli: Cli):
    found = cli("rewind", "--to", "1", "--json").json
    assert found["command"] == f"claude --session-id {found['new_agent_session']}"
    assert found["transcript"] is None


def test_another_configuration_directory_is_named(
    agent: Recorded, cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place / "other"))
    command = cli("rewind", "--to", "2", "--json").json["command"]
    assert command.startswith(f"CLAUDE_CONFIG_DIR={place / 'config'} claude --resume ")


def test_elsewhere_the_command_changes_the_directory(agent: Recorded, cli: Cli):
    (agent.work / "sub").mkdir()
    os.chdir(agent.work / "sub")
    found = cli("rewind", "--to", "2", "--chat", "--json").json
    assert found["command"].startswith(f"cd {agent.work} && claude --resume ")


def test_in_a_project_that_was_moved_no_command_names_the_old_place(
    agent: Recorded, cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch
):
    moved = agent.work.rename(place / "moved")
    monkeypatch.chdir(moved)
    said = cli("rewind", "--to", "2", "--yes").out
    assert str(agent.work) not in said
    assert "\n  claude --resume " in said.replace(f"CLAUDE_CONFIG_DIR={place / 'config'} ", "")
    assert f"The other branch stays: `mulligan rewind {OLD} --to @latest --chat`" in said


def test_the_branch_that_is_left_is_continued_where_it_was_started(agent: Recorded, cli: Cli):
    with mulligan.open(agent.work) as store:
        session = store.session(f"claude-{OLD}", create=False)
        # The agent has changed to a directory that the rewind removes.
        session.state.set("agent_session/cwd", str(agent.work / "made" / "later"))
    done = cli("rewind", "--to", "2")
    assert f"The other branch stays: `claude --resume {OLD}`" in done.out
    assert cli("rewind", "--undo", "--json").json["command"] == f"claude --resume {OLD}"


def test_a_checkpoint_is_a_target(agent: Recorded, cli: Cli):
    log = cli("log", "-s", f"claude-{OLD}", "--json").json["entries"]
    batch = [one for one in log if one["data"]["event"] == "PostToolBatch"][1]
    found = cli("rewind", "--to", batch["checkpoint_id"], "--json").json
    assert found["to"]["checkpoint_id"] == batch["checkpoint_id"]
    assert files(agent.work) == {"a.txt": "one", "b.txt": "two"}


def test_an_agent_at_work_is_named(agent: Recorded, cli: Cli):
    with mulligan.open(agent.work) as store:
        live = store.agent("claude", session=f"claude-{OLD}", process=os.getpid())
        assert "claude is at work" in cli("rewind", "--to", "2", "--dry-run").err
        said = cli("rewind", "--to", "2", "--chat")
        assert said.code == 0
        assert "claude is at work" in said.err
        assert "on the same files" in said.err
        live.internal.release_hold()


def test_a_command_that_may_still_run_is_named(agent: Recorded, cli: Cli):
    """`kill -9` of an agent does not end its shell."""
    process = subprocess.Popen(["sleep", "1000"])
    with mulligan.open(agent.work) as store:
        hook = store.agent("claude", session=f"claude-{OLD}", process=process.pid)
        hook.tools.begin("Bash", {"command": "sleep 40; echo 2 > k2"}, id="toolu_1")
        hook.close()
    process.kill()
    process.wait()
    said = cli("rewind", "--to", "2", "--dry-run")
    assert "whether Bash `sleep 40; echo 2 > k2` has ended is not known" in said.err
    found = cli("rewind", "--to", "2", "--dry-run", "--json").json
    assert [one["id"] for one in found["in_doubt"]] == ["toolu_1"]
    assert cli("tools", "-s", f"claude-{OLD}", "settle", "toolu_1", "done").code == 0
    assert "has ended" not in cli("rewind", "--to", "2", "--dry-run").err


def test_effects_stay_in_the_world_and_are_shown(agent: Recorded, cli: Cli):
    with mulligan.open(agent.work) as store:
        session = store.session(f"claude-{OLD}", actor="claude")
        with session.effect("mail.send", intent={"to": "ann"}) as effect:
            effect.result = "sent"
    refused = cli("rewind", "--to", "2")
    assert (refused.code, "1 effect cannot be undone" in refused.out) == (119, True)
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
    stays = "1 effect after it stays in the world: mail.send"
    assert stays in cli("rewind", "--to", "2", "--chat").out
    assert cli("rewind", OLD, "--to", "2", "--accept-left-behind").code == 0
    assert files(agent.work) == {"a.txt": "one"}
    found = cli("rewind", OLD, "--to", "2", "--dry-run", "--json").json
    assert [one["name"] for one in found["effects"]] == ["mail.send"]


def test_declined_on_a_terminal_nothing_changes(agent: Recorded, place: Path, on_terminal):
    code, shown = on_terminal("--store", str(agent.work), "rewind", "--to", "2", answer="n\n")
    assert (code, "Nothing was changed." in shown) == (1, True)
    assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}


def test_beside_an_agent_at_work_the_default_answer_is_no(agent: Recorded, cli: Cli, on_terminal):
    rewind = ("--store", str(agent.work), "rewind", OLD, "--to", "2")
    with mulligan.open(agent.work) as store:
        live = store.agent("claude", session=f"claude-{OLD}", process=os.getpid())
        code, shown = on_terminal(*rewind, answer="\n")
        assert (code, "Rewind? [y/N]" in shown) == (1, True)
        assert files(agent.work) == {"a.txt": "three", "b.txt": "two"}
        # A fork leaves the files of the agent alone.
        code, shown = on_terminal(*rewind, "--fork", str(agent.work.parent / "copy"), answer="n\n")
        assert (code, "Rewind? [Y/n]" in shown) == (1, True)
        live.internal.release_hold()
    code, shown = on_terminal(*rewind, answer="\n")
    assert (code, "Rewind? [Y/n]" in shown) == (0, True)


def test_a_number_alone_leads_to_the_option(agent: Recorded, cli: Cli):
    said = cli("rewind", "3")
    assert (said.code, "no conversation '3'" in said.err) == (106, True)
    assert "`mulligan rewind --to 3`" in said.err
    assert "--to" not in cli("rewind", "unknown").err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--to", "0"], 106, "no prompt 0; there are 3"),
        (["--to", "4"], 106, "no prompt 4; there are 3"),
        (["--to", "nowhere"], 30, "nowhere"),
        (["--to", ""], 30, ""),
        (["--to", "#1"], 106, "No conversation of a coding agent is recorded at #1"),
        (["--to", "main:#1"], 106, "is recorded at #1 of 'main'"),
        (["unknown", "--to", "1"], 106, "no conversation 'unknown'"),
        (["main", "--to", "1"], 106, "no conversation 'main'"),
        (["--files"], 2, "--to"),
        (["--fork", "x"], 2, "--to"),
        (["--dry-run"], 2, "--to"),
        (["--to", "1", "--chat", "--fork", "x"], 2, "--fork takes files and conversation"),
        (["--to", "1", "--files", "--chat"], 2, "Choose one of --files, --chat and --both"),
        (["--to", "1", "--both", "--chat"], 2, "Choose one of --files, --chat and --both"),
        (["--both"], 2, "--to"),
        (["--undo", "--to", "1"], 2, "--undo takes no other options"),
        (["--undo"], 106, "no rewind to undo"),
    ],
)
def test_mistakes(agent: Recorded, cli: Cli, args: list[str], code: int, said: str):
    before = files(agent.work)
    result = cli("rewind", *args)
    assert (result.code, said in result.err) == (code, True), result.err
    assert files(agent.work) == before
    assert [one.name for one in agent.path.parent.iterdir()] == [f"{OLD}.jsonl"]


def test_a_fork_into_a_directory_that_is_not_empty(agent: Recorded, cli: Cli, place: Path):
    (place / "full").mkdir()
    (place / "full/mine").write_text("mine")
    result = cli("rewind", "--to", "2", "--fork", "../full")
    assert result.code == 80
    assert (place / "full/mine").read_text() == "mine"
    assert [one.name for one in agent.path.parent.iterdir()] == [f"{OLD}.jsonl"]
    assert not list((place / "config/projects").glob("*full*"))


def test_without_any_conversation(store: Cli):
    result = store("rewind")
    assert (result.code, "No conversation" in result.err) == (106, True)
    assert "mulligan install AGENT` (claude, codex" in result.err


def test_a_deleted_transcript_comes_back(agent: Recorded, cli: Cli):
    agent.path.unlink()
    found = cli("rewind", "--to", "@latest", "--chat", "--json").json
    assert Path(found["transcript"]).is_file()
    assert found["prompt"] is None


def test_a_transcript_folder_that_cannot_be_written(agent: Recorded, cli: Cli):
    before = files(agent.work)
    folder = agent.path.parent
    agent.path.unlink()
    folder.rmdir()
    folder.write_text("a file in its place")
    result = cli("rewind", "--to", "2")
    assert (result.code, "cannot be written: Not a directory" in result.err) == (106, True)
    assert files(agent.work) == before

"""What only a process of its own shows: closed, full and broken streams, a poor machine, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import pytest


class Processes:
    """Runs of the command line, started together because most of their time goes into importing."""

    def __init__(self, home: Path, model: Path) -> None:
        self.home = home
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.results: dict[str, tuple[int, bytes, str]] = {}
        # transformers imports torch where it finds it: seconds each of these processes has no use for.
        (home / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
        (home / "text.txt").write_text("hello world, the draft and then the cache " * 500)
        generate = ["-m", "mlx_skipspec", "generate", "--model", str(model), "-p"]
        self.start("closed stdin", *generate, "-", shell='exec "$@" <&-')
        self.start("folder as stdin", *generate, "-", shell='exec "$@" <.')
        self.start("too long", *generate, "z" * 1024)
        self.start("full stdout", *generate, "hi", shell='exec "$@" >/dev/full')
        endless = ["hi", "-m", "-1", "--max-kv-size", "64", "--logit-bias", f'{{"{checkpoint.EOS}": -1000}}']
        self.start("reader gone", *generate, *endless)
        self.start("poor machine", *generate, "hi", "-m", "20", PATH=str(home), PYTHONIOENCODING="latin-1")
        self.start("generate", *generate, *endless)
        options = ["--plan", "1,1", "--tokens", "256", "--minutes", "0", "--text", str(home / "text.txt")]
        # These wait where they write, with part of their folder on disk.
        self.start("convert", self.waiting("convert.hf", "save_config"), "convert", "--hf-path", str(model))
        self.start("fit", self.waiting("artifacts", "save_file"), "fit", "--model", str(model), *options)

    def waiting(self, module: str, function: str) -> str:
        """A program that is ours but for one function, which says that it was called and waits."""
        file = self.home / f"waiting-in-{function}.py"
        file.write_text(
            "import sys, time\n"
            f"import mlx_skipspec.{module} as module\n"
            "from mlx_skipspec.cli import main\n"
            f"module.{function} = lambda *args: (print(end='.', flush=True), time.sleep(600))\n"
            f"sys.argv += ['--out', {str(self.home / 'new')!r} + sys.argv[1] + '/deep/out']\n"
            "main()\n"
        )
        return str(file)

    def start(self, name: str, *arguments: str, shell: str = 'exec "$@"', **environment: str) -> None:
        self.running[name] = subprocess.Popen(
            ["/bin/sh", "-c", shell, "sh", sys.executable, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pipesize=4096,  # an endless answer soon waits for its reader
            env=os.environ | {"PYTHONPATH": str(self.home)} | environment,
            cwd=self.home,
        )

    def first_byte(self, name: str) -> subprocess.Popen[bytes]:
        process = self.running[name]
        assert process.stdout is not None
        assert process.stdout.read(1), self.result(name)
        return process

    def result(self, name: str) -> tuple[int, bytes, str]:
        """Exit code, standard output and error."""
        if name not in self.results:
            out, err = self.running[name].communicate(timeout=120)
            self.results[name] = self.running[name].returncode, out, err.decode(errors="replace")
        assert "Traceback" not in self.results[name][2], self.results[name][2]
        assert "Exception ignored" not in self.results[name][2], self.results[name][2]
        return self.results[name]


@pytest.fixture(scope="module")
def processes(home: Path, model: Path) -> Iterator[Processes]:
    processes = Processes(home, model)
    yield processes
    for process in processes.running.values():
        process.kill()
        process.communicate()


def test_a_closed_standard_input(processes: Processes) -> None:
    code, out, err = processes.result("closed stdin")
    assert (code, out) == (2, b"")
    assert err.startswith("error: Standard input is closed; pipe the prompt")
    assert err.count("\n") == 1


def test_a_prompt_longer_than_the_context_gets_our_word_only(processes: Processes) -> None:
    code, out, err = processes.result("too long")
    assert (code, out) == (2, b"")
    assert err.startswith("error: The prompt has ")
    assert err.count("\n") == 1


def test_a_folder_as_standard_input_is_refused_by_python_itself(processes: Processes) -> None:
    code, out, err = processes.result("folder as stdin")
    assert (code, out) == (1, b"")
    assert "<stdin> is a directory" in err


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_a_standard_output_that_is_full(processes: Processes) -> None:
    code, _, err = processes.result("full stdout")
    assert code == 2
    assert err.startswith("error: Standard output cannot be written (No space left on device)")
    assert err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_cause_for_complaint(processes: Processes) -> None:
    process = processes.first_byte("reader gone")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() != 0


def test_a_terminal_that_lacks_characters_gets_others(processes: Processes) -> None:
    code, out, _ = processes.result("poor machine")
    assert code == 0
    assert b"?" in out
    assert "�".encode() not in out


@pytest.mark.skipif(sys.platform != "linux", reason="only mlx on a Linux CPU compiles with g++")
def test_without_a_compiler_it_generates_and_says_so_in_one_line(processes: Processes) -> None:
    code, out, err = processes.result("poor machine")
    assert code == 0
    assert out.strip()
    assert [line for line in err.splitlines() if "g++" in line] == err.splitlines()[:1]
    assert err.startswith("note: no g++ found")


@pytest.mark.parametrize("command", ["generate", "convert", "fit"])
def test_ctrl_c_ends_a_command_with_one_line_and_leaves_nothing(processes: Processes, home: Path, command: str) -> None:
    processes.first_byte(command).send_signal(signal.SIGINT)
    code, _, err = processes.result(command)
    assert code == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "error" not in err
    assert not (home / f"new{command}").exists()

"""Misbehaving programs under perfctl, one batch size each."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from scene import (
    Broken,
    Ended,
    Fault,
    Scene,
    Skipped,
    expect,
    no_traceback,
    removed,
    runs_of,
    store_is_whole,
)

NO_TERM = (
    "import signal\nfor number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
)
STUBBORN = NO_TERM + "import time\ntime.sleep(600)\n"
STOPPED = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
DAEMONS = (
    NO_TERM
    + """
import os, sys, time
def daemon(environment):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", sys.argv[2]], environment)
        os._exit(0)
    os.wait()
for _ in range(20):
    daemon(dict(os.environ))
daemon({})
time.sleep(1)
"""  # noqa: E501
)
"""Proper daemons, twenty that keep the environment and one that clears it; argv[2] is on their
command lines."""
LOUD = "import os\nblock = b'x' * (1 << 20)\nfor _ in range(1024):\n    os.write(1, block)\n"
DEAF = "import os\nos.closerange(0, 256)\n"
GONE = "import shutil, sys\nshutil.rmtree(sys.argv[2])\n"
TIDY = "import shutil, sys\nshutil.rmtree(sys.argv[2] + '/perfctl-runs')\n"
HUNGRY = """
import sys, torch
batch = int(sys.argv[1])
model = torch.nn.Linear(8, 8)
for _ in range(8):
    rows = torch.zeros(batch, 8) if batch != 2 else torch.zeros(1 << 50)
    model.zero_grad()
    model(rows).sum().backward()
    torch.optim.SGD(model.parameters(), 0.1).step()
"""
KILLED = (
    "import os, signal, sys\nimport torch\nif sys.argv[1] == '2':\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n" + HUNGRY
)

STEPS = """
import sys, torch
model = torch.nn.Linear(8, 8)
for _ in range(8):
    model(torch.zeros(int(sys.argv[1]), 8)).sum().backward()
"""
MODULE = (sys.executable, "-m")
KILL = "import os, signal\nos.kill(os.getpid(), signal.SIG{})\n"
EXEC = "import os, sys\nos.execv({0}, [{0}, {1}])\n"
ODD = {
    **{f"signal-{name}": STEPS + KILL.format(name) for name in ("KILL", "TERM", "INT", "HUP")},
    **{
        f"early-{name}": KILL.format(name) for name in ("SEGV", "ABRT", "BUS", "FPE", "ILL", "QUIT")
    },
    "nothing": "",
    "syntax": "def",
    "raises": STEPS + "raise ValueError('x' * 99999)\n",
    "raises-hostile": STEPS + "raise ValueError('\\x1b[2J\\u202e\\ud800')\n",
    "exit-3": STEPS + "sys.exit(3)\n",
    "exit-text": STEPS + "sys.exit('no')\n",
    "os-exit": STEPS + "import os\nos._exit(0)\n",
    "exec-python": EXEC.format("sys.executable", "'-c', 'pass'"),
    "exec-isolated": EXEC.format("sys.executable", "'-I', '-S', '-c', 'pass'"),
    "exec-true": EXEC.format("'/bin/true'", "''"),
    "exec-shell": EXEC.format("'/bin/sh'", "'-c', 'exit 7'"),
    "forks": "import os\n" + STEPS + "os.fork()\n",
    "forks-early": "import os\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n" + STEPS,
    "threads": "import threading, time\n"
    + STEPS
    + "threading.Thread(target=time.sleep, args=(1,)).start()\n",
    "spawns": "import multiprocessing as m\n"
    + STEPS
    + "p = m.Process(target=print)\np.start()\np.join()\n",
    "recursion": "f = lambda: f()\nf()\n",
    "deep": "import sys\nsys.setrecursionlimit(1 << 30)\nf = lambda: f()\nf()\n",
    "no-memory": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 26,) * 2)\n"
    + STEPS,
    "no-files": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n" + STEPS,
    "no-size": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))\n" + STEPS,
    "changes-folder": "import os\nos.chdir('/')\n" + STEPS,
    "clears-environment": "import os\nos.environ.clear()\n" + STEPS,
    "closes-output": "import sys\nsys.stdout.close()\nsys.stderr.close()\n" + STEPS,
    "replaces-output": "import io, sys\nsys.stdout = sys.stderr = io.StringIO()\n" + STEPS,
    "binary-output": "import os\nos.write(2, bytes(range(256)) * 99)\n" + STEPS,
    "clears-modules": STEPS + "sys.modules.clear()\n",
    "breaks-time": "import time\ntime.time = time.perf_counter = lambda: 0\n" + STEPS,
    "breaks-json": "import json\njson.dump = json.dumps = None\n" + STEPS,
    "breaks-open": "import builtins\nbuiltins.open = None\n" + STEPS,
    "breaks-backward": "import torch\ntorch.Tensor.backward = lambda self: None\n" + STEPS,
    "hooks-exit": "import atexit, os\natexit.register(os._exit, 5)\n" + STEPS,
    "hooks-trace": "import sys\nsys.settrace(lambda *a: None)\n" + STEPS,
    "removes-itself": "import os, sys\nos.unlink(sys.argv[0])\n" + STEPS,
    "no-batch": STEPS.replace("int(sys.argv[1])", "3"),
}
"""Name of a program that does something unusual -> its code."""


ELSEWHERE = STEPS.replace("sys.argv[1]", "sys.argv[-2]")
LAUNCHES: dict[str, tuple[tuple[str, ...], int]] = {
    "python -I": ((sys.executable, "-I"), 0),
    "python -S": ((sys.executable, "-S"), 1),
    "python -I -S": ((sys.executable, "-I", "-S"), 1),
    "a console entry point": ((), 0),
    "torchrun": ((*MODULE, "torch.distributed.run", "--standalone", "--nproc-per-node=2"), 0),
    "accelerate": (("accelerate", "launch", "--cpu", "--num_processes", "1"), 0),
}
"""Words before a script -> exit code; -S hides torch."""
SECRETS = ("sk-" + "aRgument" * 4, "oPtionvalue", "lOginvalue", "hf_" + "eNvironment" * 3, "rEmote")
ARGUMENTS = (
    "--api-key",
    SECRETS[0],
    "--hf_token",
    SECRETS[1],
    f"https://me:{SECRETS[2]}@host/data",
)


def _launches(scene: Scene) -> None:
    """Each way to start a script gives a complete run, or one line that says why not."""
    for name, (words, code) in LAUNCHES.items():
        if words and shutil.which(words[0]) is None:
            scene.seen.append(f"{name} is not installed")
            continue
        scene.attempt(partial(_launch, scene, name, words, code))


def _launch(scene: Scene, name: str, words: tuple[str, ...], code: int) -> str:
    options = ("--steps", "2", "--warmup", "1")
    ended, folder = _run(scene, f"#!{sys.executable}\n{STEPS}", *options, launch=words)
    expect(ended, code, says="has no torch" if code else "")
    if not code and "ok" not in {status for _, _, status, _ in runs_of(folder / "perfctl.db")}:
        raise Broken(f"{name}: no run is complete: {ended.said}")
    removed(folder)
    return f"{name} {code}"


def _secrets(scene: Scene) -> None:
    """No secret of arguments, environment or git remote is in what may be passed on."""

    def once() -> str:
        repository = scene.fresh("repository")
        remote = f"https://me:{SECRETS[4]}@host/x.git"
        for words in (("init", "-q"), ("remote", "add", "origin", remote)):
            subprocess.run(("git", *words), cwd=repository, check=True)
        ended, folder = _run(
            scene,
            ELSEWHERE,
            *("--steps", "2", "--warmup", "1"),
            arguments=ARGUMENTS,
            more={"HF_TOKEN": SECRETS[3], "DB_PASSWORD": SECRETS[3]},
            folder=repository,
        )
        expect(ended, 0)
        texts = [ended.out + ended.err]
        for command in (("report",), ("show", "1"), ("runs", "--json"), ("export", "--out", "t")):
            shown = scene.perfctl(*command, cwd=folder)
            texts.append(expect(shown, 0) + shown.out + shown.err)
        files = [*folder.glob("perfctl*.*"), *folder.glob("t/*")]
        texts += [path.read_bytes().decode("latin-1") for path in files if path.is_file()]
        for number, secret in enumerate(SECRETS):
            if any(secret in text for text in texts):
                raise Broken(f"secret {number} ({secret}) is kept")
        removed(folder)
        return f"{len(SECRETS)} secrets in {len(texts)} outputs and files: none"

    scene.attempt(once)


def _odd(scene: Scene) -> None:
    """Every program ends, with 0, 1 or 4, in a temporary folder of its own."""
    counts: Counter[int] = Counter()

    def once(code: str) -> None:
        folder = scene.fresh("tmp-of-program")
        ended, place = _run(
            scene, code, "--timeout", "60", "--grace", "1", more={"TMPDIR": str(folder)}
        )
        expect(ended, 0, 1, 4)
        counts[ended.code] += 1
        removed(place)

    for name, code in ODD.items():
        try:
            scene.attempt(partial(once, code))
        except Broken as error:
            raise Broken(f"{name}: {error}") from None
    scene.seen.append(", ".join(f"{count} ended with {code}" for code, count in counts.items()))


def _run(
    scene: Scene,
    code: str,
    *options: str,
    batches: str = "1",
    more: Mapping[str, str] | None = None,
    launch: tuple[str, ...] = (sys.executable,),
    arguments: tuple[str, ...] = (),
    folder: Path | None = None,
) -> tuple[Ended, Path]:
    """Run ``code`` as a program under perfctl torch; return how that ended, and the folder."""
    if importlib.util.find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")
    folder = folder or scene.fresh()
    script = folder / "prog.py"
    script.write_text(code)
    script.chmod(0o755)
    command = ("torch", "--device", "cpu", "--batches", batches, "--sample", "off", *options)
    child = scene.start(
        *command,
        *("--", *launch, str(script), *arguments, "{batch}", str(folder)),
        cwd=folder,
        more=more,
    )
    ended = scene.ended(child, folder)
    no_traceback(ended)
    scene.nothing_left()
    store_is_whole(folder / "perfctl.db")
    return ended, folder


def _ends(code: str, says: str, *options: str, exit_code: int = 4) -> Callable[[Scene], None]:
    """perfctl prints ``says`` and exits with ``exit_code``; no process of the program is left."""

    def once(scene: Scene) -> str:
        ended, folder = _run(scene, code, *options)
        removed(folder)
        return expect(ended, exit_code, says=says)

    return lambda scene: scene.attempt(partial(once, scene))


def _loud(scene: Scene) -> None:
    def once() -> str:
        before = os.times().children_user
        ended, folder = _run(scene, LOUD)
        log = next(folder.glob("perfctl-runs/*/b1/stdout.log"))
        written = log.stat().st_size
        removed(folder)
        expect(ended, 4, says="without importing torch")
        if written < 1 << 30:
            raise Broken(f"stdout.log has {written} bytes, not 1 GiB")
        return (
            f"{written >> 20} MiB in stdout.log; {os.times().children_user - before:.1f} s of CPU "
            "in all"
        )

    scene.attempt(once)


def _one_of_three(code: str, says: str) -> Callable[[Scene], None]:
    """perfctl names the failing batch size with its reason; the others are complete."""

    def once(scene: Scene) -> str:
        ended, folder = _run(scene, code, "--steps", "2", "--warmup", "1", batches="1,2,4")
        said = expect(ended, 4, says=says)
        whole = sorted(path.parent.name for path in folder.glob("perfctl-runs/*/b*/report.*"))
        if not {"b1", "b4"} <= set(whole):
            raise Broken(f"whole are {whole}: {said}")
        removed(folder)
        return said

    return lambda scene: scene.attempt(partial(once, scene))


FAULTS = (
    Fault(
        "ignores-term",
        "it ignores every polite signal",
        _ends(STUBBORN, "time limit", "--timeout", "6", "--grace", "1"),
    ),
    Fault(
        "stops-itself",
        "it stops as after Ctrl-Z",
        _ends(STOPPED, "time limit", "--timeout", "6", "--grace", "1"),
    ),
    Fault(
        "daemons",
        "it leaves 21 daemons, one without environment",
        _ends(DAEMONS, "without importing torch"),
    ),
    Fault("launches", "ways to start a script", _launches),
    Fault("secrets", "secrets in arguments, environment and git remote", _secrets),
    Fault(
        "removes-everything",
        "it removes the folder that perfctl runs in",
        _ends(GONE, "the current folder", exit_code=1),
    ),
    Fault("odd-programs", f"{len(ODD)} programs that do something unusual", _odd),
    Fault("loud", "it writes 1 GiB to stdout without a line break", _loud),
    Fault(
        "closes-descriptors", "it closes its descriptors", _ends(DEAF, "without importing torch")
    ),
    Fault("removes-folder", "it removes the folder of its own run", _ends(TIDY, "")),
    Fault(
        "out-of-memory",
        "one batch size of three needs more memory than there is",
        _one_of_three(HUNGRY, "out of memory at batch size 2"),
    ),
    Fault("oom-killer", "one batch size of three is killed", _one_of_three(KILLED, "SIGKILL")),
)

"""Misbehaving programs under perfctl, one batch size each."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
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


def _run(scene: Scene, code: str, *options: str, batches: str = "1") -> tuple[Ended, Path]:
    """Run ``code`` as a program under perfctl torch; return how that ended, and the folder."""
    if importlib.util.find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")
    folder = scene.fresh()
    script = folder / "prog.py"
    script.write_text(code)
    command = ("torch", "--device", "cpu", "--batches", batches, "--sample", "off", *options)
    child = scene.start(
        *command, "--", sys.executable, str(script), "{batch}", str(folder), cwd=folder
    )
    ended = scene.ended(child, folder)
    no_traceback(ended)
    scene.nothing_left()
    store_is_whole(folder / "perfctl.db")
    return ended, folder


def _ends(code: str, says: str, *options: str) -> Callable[[Scene], None]:
    """perfctl prints ``says`` and exits with 4, and no process of the program is left."""

    def once(scene: Scene) -> str:
        ended, folder = _run(scene, code, *options)
        removed(folder)
        return expect(ended, 4, says=says)

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

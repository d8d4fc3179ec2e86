"""Traces of a user's own model: kept by the content of its files, and not at all where those do not
say everything."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfctl.orchestrator.errors import PerfctlError
from perfctl.orchestrator.estimate import trace_cache
from perfctl.orchestrator.estimate.request import Request
from perfctl.orchestrator.estimate.session import estimate_model_for_batches
from perfctl.orchestrator.estimate.trace_cache import open_trace_cache_if_reproducible

NET = (
    "from torch import nn\nfrom {helper} import width\ndef net():\n"
    "    return nn.Linear(8, width())\n"
)
LONG_AGO = 1_600_000_000


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """The cache, switched on and empty."""
    monkeypatch.delenv(trace_cache.OFF)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "perfctl" / "traces"


def write(path, text, age=0):
    """A file of the user's, last written before this process began; no import of before
    is remembered."""
    path.write_text(text, encoding="utf-8")
    os.utime(path, (LONG_AGO + age,) * 2)
    sys.modules.pop(path.stem, None)


def macs(reference):
    return estimate_model_for_batches(Request(reference, ("8",))).batches[1].forward.macs


def is_kept(reference):
    found = open_trace_cache_if_reproducible(Request(reference, ("8",)))
    return found is not None and found._files is not None


def test_an_edit_of_a_module_that_the_factory_imports_gives_new_traces(tmp_path):
    model = f"{tmp_path / 'kept_net.py'}:net"
    write(tmp_path / "kept_net.py", NET.format(helper="kept_width"))
    write(tmp_path / "kept_width.py", "def width(): return 3\n")
    assert (macs(model), is_kept(model), macs(model)) == (8 * 3, True, 8 * 3)
    write(tmp_path / "kept_width.py", "def width(): return 5\n", age=1)
    assert not is_kept(model)
    assert (macs(model), is_kept(model)) == (8 * 5, True)
    write(tmp_path / "kept_width.py", "def width(): return 3\n", age=2)
    assert macs(model) == 8 * 3


def test_a_package_is_kept_by_all_its_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept_package").mkdir()
    write(tmp_path / "kept_package" / "__init__.py", "from .size import width\n")
    write(tmp_path / "kept_package" / "size.py", "def width(): return 3\n")
    write(tmp_path / "kept_package" / "net.py", NET.format(helper="."))
    assert (macs("kept_package.net:net"), is_kept("kept_package.net:net")) == (8 * 3, True)
    names = [
        Path(path).name
        for path in trace_cache.list_source_files_if_deterministic("kept_package.net") or ()
    ]
    assert sorted(names) == ["__init__.py", "net.py", "size.py"]
    write(tmp_path / "kept_package" / "size.py", "def width(): return 4\n", age=1)
    assert not is_kept("kept_package.net:net")


def test_a_new_file_beside_the_factory_might_be_imported_instead_of_another(tmp_path):
    model = f"{tmp_path / 'kept_lone.py'}:net"
    write(tmp_path / "kept_lone.py", LINEAR.format(2))
    assert (macs(model), is_kept(model)) == (16, True)
    (tmp_path / "notes.txt").touch()
    assert is_kept(model)
    (tmp_path / "torchvision.py").touch()
    assert not is_kept(model)


def test_what_was_written_after_this_process_began_may_not_be_what_it_imported(tmp_path):
    path = tmp_path / "kept_new.py"
    path.write_text(LINEAR.format(2), encoding="utf-8")
    assert (macs(f"{path}:net"), is_kept(f"{path}:net")) == (16, False)


LINEAR = "from torch import nn\ndef net():\n    return nn.Linear(8, {})\n"
READING = {
    "the environment": ("import os\n", "int(os.environ.get('WIDTH', 2))"),
    "the environment by name": ("from os import getenv\n", "int(getenv('WIDTH', 2))"),
    "a file": ("", "2 if open else 3"),
    "a path": ("from pathlib import Path\n", "2"),
    "chance": ("import random\n", "random.choice([2])"),
    "the clock": ("import time\n", "2 + 0 * int(time.time())"),
    "the machine": ("import torch\n", "2 if torch.cuda.is_available() else 2"),
    "weights": ("import torch\n", "2 if hasattr(torch.hub, 'load') else 2"),
    "text as code": ("", "eval('2')"),
    "another package": ("import pytest\n", "2"),
    "a module of one": ("from hypothesis import settings\n", "2"),
    "perhaps another package": (
        "try:\n    import kept_missing\nexcept ImportError:\n    pass\n",
        "2",
    ),
    "published weights": ("from functools import partial\n", "partial(int, pretrained=True) and 2"),
}
HARMLESS = {
    "words that look like reading": "class Net(nn.Linear):\n    def forward(self, input):\n"
    "        self.eval()\n        return super().forward(input)\n"
    "def net():\n    return Net(8, 2, bool(dict(pretrained=False)))\n",
    "a kernel in triton reads memory of the GPU": "def kernel(at):\n"
    "    from triton import language as tl\n    return tl.load(at)\n"
    "def net():\n    return nn.Linear(8, 2)\n",
}
SOURCES = {
    what: (before + LINEAR.format(width), False) for what, (before, width) in READING.items()
}
SOURCES |= {what: (f"from torch import nn\n{text}", True) for what, text in HARMLESS.items()}


@pytest.mark.parametrize("what", SOURCES)
def test_a_factory_that_reads_more_than_its_files_is_traced_each_time(what, tmp_path, cache):
    path = tmp_path / f"kept_{'_'.join(what.split())}.py"
    text, keeps = SOURCES[what]
    write(path, text)
    assert (macs(f"{path}:net"), is_kept(f"{path}:net")) == (16, keeps)
    assert cache.exists() == keeps


def test_an_error_while_a_model_is_built_is_not_kept(tmp_path, cache):
    path = tmp_path / "kept_error.py"
    write(path, "def net():\n    raise RuntimeError('not today')\n")
    with pytest.raises(PerfctlError, match="not today"):
        macs(f"{path}:net")
    with pytest.raises(PerfctlError, match="torchvision has no model"):
        macs("torchvision:resnet51")
    assert not cache.exists()


def test_a_trace_that_ended_for_want_of_a_package_is_made_anew(tmp_path):
    path = tmp_path / "kept_want.py"
    write(
        path,
        "from torch import nn\nclass Net(nn.Linear):\n    def forward(self, x):\n"
        "        raise ImportError('no kernels')\n"
        "def net():\n    return Net(8, 2)\n",
    )
    assert estimate_model_for_batches(Request(f"{path}:net", ("8",))).problems
    found = open_trace_cache_if_reproducible(Request(f"{path}:net", ("8",)))
    assert found is not None and found._files is not None
    # the files and the facts, no trace
    assert not any(path.stat().st_size > 500 for path in found.folder.iterdir())


def test_a_config_is_kept_by_its_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def base(model):
        found = open_trace_cache_if_reproducible(Request(model))
        assert found is not None
        return found._base

    plain = base("hf:bert")
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert"}')
    first = base("hf:bert")
    (tmp_path / "bert" / "config.json").write_text('{"model_type": "bert", "hidden_size": 96}')
    assert len({plain, first, base("hf:bert"), base("bert/config.json")}) == 4


def test_what_came_over_the_network_is_not_kept(cache):
    found = open_trace_cache_if_reproducible(Request("hf:somebody/model"))
    assert found is not None
    found.record_source_file_digests(None)
    found.put("facts", "facts")
    assert not cache.exists()


def test_many_writers_and_readers_of_one_entry_never_see_half_of_it(cache):
    texts = [str(size) * 100_000 for size in range(10)]

    def work(place):
        one = open_trace_cache_if_reproducible(Request("mnist_cnn"))
        assert one is not None
        one.record_source_file_digests(())
        seen: set[str | None] = set()
        for _ in range(10):
            one.put(texts[place], "one")
            seen.add(one.get(str, "one"))
        return seen

    with ThreadPoolExecutor(len(texts)) as pool:
        seen = set().union(*pool.map(work, range(len(texts))))
    assert seen <= set(texts)
    assert not list(cache.glob("*.tmp"))


CALLS = """
import sys
from perfctl.orchestrator.cli.main import run_command_line as run
spec = "--device-spec", "name=X,fp32_tflops=20,bandwidth_gbs=900,memory_gb=24"
codes = [
    run(["estimate", "mnist_cnn", "--batch", "64", "--layer", "conv2", "--check", "9437184 B"]),
    run(["estimate", "mnist_cnn", "--memory", "1GiB"]),
    run(["predict", "mnist_cnn", "--batch", "32", *spec]),
]
print(codes, [name for name in sys.modules if name == "torch"])
"""


def test_a_second_call_prints_the_same_and_imports_no_torch(tmp_path):
    def call():
        done = subprocess.run(
            [sys.executable, "-c", CALLS], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        *shown, last = done.stdout.splitlines()
        return SimpleNamespace(shown=shown, last=last, said=done.stderr)

    first, second = call(), call()
    assert first.shown[0].startswith("9,437,184 B is correct")
    assert (first.shown, first.last[:9]) == (second.shown, "[0, 0, 0]")
    assert (first.last, second.last) == ("[0, 0, 0] ['torch']", "[0, 0, 0] []")
    assert second.said == first.said.replace("tracing mnist_cnn without data\n", "")

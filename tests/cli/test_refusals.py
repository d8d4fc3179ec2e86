"""Requests that make no sense: each is refused in one line, before anything runs or is written.

What an action itself refuses by field is in tests/commands/test_refusals.py; here are the words of
the command line: options, remedies, and what only the command line can be asked for.
"""

import shutil
from pathlib import Path

import pytest

LANGUAGE_MODEL = Path(__file__).parents[1] / "data" / "scripts" / "language_model.py"
OWN_SCRIPT = "torch --batches 2,4 --device cpu"
PREDICT = "predict vgg:depth=6,stages=3,width=16,image=32,hidden=64"
GENERATE = f"estimate {LANGUAGE_MODEL}:mixture --prompt 6 --generate 5"
ANSWER = f"predict {LANGUAGE_MODEL}:plain --prompt 6 --generate 5 --device 'H100 SXM5'"
TRAINED = "mfu --tokens-per-second 1"
SIZES = "--layers 2 --hidden 64 --heads 4 --ffn 128 --vocab 500"

WRONG_REQUESTS = (
    ("reprot", "no such command 'reprot'. Did you mean 'report', "),
    ("nonsense", "no such command 'nonsense'. Run 'perfctl --help' for the valid options"),
    ("slurm rendr", "Did you mean 'render'? Run 'perfctl slurm --help' for the valid options"),
    (
        "--verson",
        "no such option: --verson (Possible options: --version). Run 'perfctl --help' for the valid",
    ),
    ("report --ot x", "no such option: --ot (Possible options: --"),
    ("show", "missing argument 'run'. Run 'perfctl show --help' for the valid options"),
    ("doctor now", "got unexpected extra argument(s) (now). Run 'perfctl doctor --help' for the"),
    ("torch --repeat 1001", "--repeat must be at most 1000, got 1001"),
    ("torch --bacthes 2", "of perfctl and its workload mnist_cnn. Did you mean --batches? "),
    ("torch --step=3", "Did you mean --steps? "),
    (
        "torch --quite-unlike-any",
        "--help lists perfctl's options, 'python -m perfctl.workloads mnist",
    ),
    ("nsys --batches 2 train.py", "Put your own script after --: -- python train.py --batch-size"),
    ("torch --batches 4 --batch 7", "--batch"),
    ("torch --batches 4 --record 7", "--record"),
    ("torch --batches 4 --annotate 7", "--annotate"),
    ("torch --batches 4 --window 7", "--window"),
    ("torch --batches 4 --trace 7", "--trace"),
    ("torch --batches x", "invalid value 'x' for --batches"),
    ("torch --workload nope", "known: mnist_cnn"),
    ("torch --mode bogus", "invalid choice"),
    ("torch --conv2 33,64,3,1", "must begin with 32"),
    ("torch --timeout -1", "--timeout"),
    ("torch --sample often", "expected a time or off, got 'often'"),
    ("torch mnist_cnn:conv2=32,128,5,1", "Use --workload mnist_cnn:conv2=32,128,5,1"),
    (f"{OWN_SCRIPT} -- train.py", "does not use the batch size"),
    (f"{OWN_SCRIPT} --lr 1 -- train.py {{batch}}", "unknown option '--lr 1' before --"),
    (f"{OWN_SCRIPT} --workload mnist_cnn -- train.py", "two programs are named"),
    (f"{OWN_SCRIPT} --batch-env SIZE", "--batch-env works only with your own script"),
    (
        f"{OWN_SCRIPT} --step-marker never -- train.py {{batch}}",
        "invalid value 'never' for --step-marker",
    ),
    ("infer --models resnet_18", "did you mean resnet18"),
    ("infer --models resnet18 --batches 1,50 --images 20", "must fill a batch of 50"),
    ("infer --models resnet18 --data mnist --data-dir .", "MNIST digits"),
    ("infer --models resnet18 --weights gone.pth", "--weights gone.pth: file not found"),
    (
        "infer --models resnet18 --data imagenet --data-dir gone",
        "--data-dir gone: folder not found",
    ),
    (
        "infer --models resnet18 --nonsense 3",
        "'--nonsense 3' of perfctl and its workload torchvision_infer",
    ),
    ("infer --models resnet18 --imags 3", "Did you mean --images? "),
    ("speedup --devices cpu", "needs at least two"),
    ("speedup --devices cpu,cpu:tf32", "invalid value 'cpu:tf32'"),
    ("speedup --devices cpu,cpu", "repeats a device"),
    ("slurm render nope", "'nope'"),
    ("slurm render nsys,nsys", "is repeated"),
    ("slurm render replay", "--recording"),
    ("slurm render nsys --bathces 16", "--bathces"),
    ("slurm render nsys -- no-such.py {batch}", "does not exist"),
    ("slurm render nsys --partition 'a\nb'", "line break"),
    ("slurm render study nonsense", "no such command 'nonsense'"),
    ("slurm render study flops --hand conv2", "--hand: 'conv2'"),
    ("slurm render study cost --models", "requires an argument"),
    ("slurm render study inference", "--models names no model"),
    (
        "slurm render study flops --hand convv2=1",
        "--hand: layer 'convv2' not found in mnist_cnn. Did you mean conv2",
    ),
    (
        "slurm render study flops --layer fc",
        "--layer: layer 'fc' not found in mnist_cnn",
    ),
    ("slurm ingest nosuch", "nosuch: file not found"),
    ("ingest train.py --guess-layers --workload no_such_net", "no_such_net"),
    ("ingest train.py --precision weird", "fp32, tf32, bf16, fp16"),
    ("ledger --layer conv9", "conv9"),
    ("ledger --format docx", "invalid value 'docx' for --format"),
    ("ledger --format md --json", "--format and --json exclude each other"),
    ("plot", "perfctl plot --list"),
    ("plot nope", "chart 'nope' is not available. Available charts"),
    ("compare 1", "compare needs two runs, sweeps or databases; got one ('1')"),
    ("compare --repeat 3 1 2", "--repeat needs --rev"),
    ("ledger --batches 7", "batch size not found in perfctl.db (--batches)"),
    ("export --run 9", "run 9 not found"),
    ("export --sweep 9", "sweep 9 has no runs"),
    ("export --all --table run", "Choose one"),
    ("export --out nowhere/x", "folder nowhere not found"),
    ("export --out a.xlsx --format csv", "--format csv, but --out a.xlsx ends like xlsx"),
    ("export --out all.csv --all", "--out all.csv: several csv tables need a folder"),
    ("trace 1 --step 99", "no step 99. It has "),
    ("trace 1 --out t.txt", "Use a name that ends with .json or .json.gz"),
    ("scrub missing.json", "missing.json"),
    ("compare sweep:9 perfctl.db", "sweep:1 is torch-mnist_cnn"),
    ("compare before.db after.db --store no.db", "file 'before.db' not found"),
    ("compare perfctl.db perfctl.db --gate 0.05", "'0.05' for --gate"),
    ("compare perfctl.db perfctl.db --json --markdown -", "both write to standard output"),
    ("history --by day", "Choose time or commit"),
    (TRAINED, "no model. Name a model"),
    ("mfu", "--tokens-per-second is missing"),
    (f"{TRAINED} --hidden 8", "--layers, --heads, --ffn, --vocab missing"),
    (
        "mfu hf:llama --tokens-per-second 1 --kv-heads 8",
        "--kv-heads and a model exclude each other",
    ),
    (f"{TRAINED} {SIZES}", "--device or --peak-tflops is needed"),
    (f"{TRAINED} {SIZES} --device H100 --peak-tflops 1979", "sparse peak"),
    (f"{GENERATE} --precision bf16", "--precision bf16 is not available with --prompt"),
    (f"{GENERATE} --check 9", "--check and --prompt exclude each other"),
    (f"{GENERATE} --memory 8GiB", "--memory and --prompt exclude each other"),
    (f"estimate {LANGUAGE_MODEL}:plain --generate 5", "--generate needs --prompt"),
    ("estimate mlp --against torch --layer fc1", "--against and --layer exclude each other"),
    ("estimate mlp --against torch --batches 1,2", "--against needs a single --batch"),
    ("estimate mlp --sheet --memory 8GiB", "--sheet and --memory exclude each other"),
    ("estimate mlp --gpu h100", "--gpu needs --memory. Set --memory, for example 80GiB"),
    ("estimate mlp --parallel dp=2 --reserve 2GiB", "--reserve needs --memory"),
    ("estimate mlp --mode infer --optimizer adam", "--optimizer needs --mode train"),
    (f"{PREDICT} --batch 64 --device A10H", "--device-spec name=...,fp32_tflops=..."),
    (f"{PREDICT} --batch 4 --device T4 --frontier", "--frontier needs --dataset-size"),
    (f"{PREDICT} --batch 4 --device T4 --store no.db", "--store: no.db not found"),
    ("predict resnet:depth=51 --batch 4 --device T4", "MODEL: resnet:depth=51: depth=51 is"),
    ("predict vgg:deep=3 --batch 4 --device T4", "vgg has no parameter 'deep'"),
    ("predict nosuch.py:net --batch 4 --device T4", "file nosuch.py does not exist"),
    (f"{ANSWER} --dataset-size 9", "--dataset-size and --prompt exclude each other"),
    (f"{ANSWER} --gpus 2", "--gpus and --prompt exclude each other"),
    (f"{ANSWER} --explain", "--explain and --prompt exclude each other"),
    ("predict mlp --batch 4 --device T4 --engine tensorrt-llm", "--engine needs --prompt"),
    ("predict --list-prices update", ""),
)
"""What is typed, and a part of the line that refuses it."""

MISSING = (
    ("bench show --store no.db", "no results database found"),
    ("history --store no.db", "no results database found"),
    ("trace 9", "run 9 not found"),
    (
        "report --sweep 7",
        "no run belongs to sweep 7. Run 'perfctl runs --json' to list the sweep_id of each run",
    ),
)
"""Likewise, for requests that make sense of which nothing is there: exit code 1."""


@pytest.mark.parametrize(
    ("typed", "code", "refusal"),
    [
        *((typed, 2, refusal) for typed, refusal in WRONG_REQUESTS),
        *((typed, 1, refusal) for typed, refusal in MISSING),
        (f"estimate {LANGUAGE_MODEL}:Breaks --prompt 5 --generate 5", 4, "not my style"),
    ],
)
def test_a_wrong_request_is_one_line_with_what_to_do_and_writes_nothing(
    perfctl, replayed, own_configuration, monkeypatch, typed, code, refusal
):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setenv("MPLCONFIGDIR", str(Path.cwd().parent / "matplotlib"))
    shutil.copy(replayed, "perfctl.db")
    Path("train.py").write_text("import torch\n")
    answer = perfctl(typed)
    assert (answer.code, answer.out, answer.err.count("\n")) == (code, "", 1), answer
    assert answer.err.startswith("perfctl: ") and refusal in answer.err
    assert {path.name for path in Path().iterdir()} - {"perfctl.db-wal", "perfctl.db-shm"} == {
        "perfctl.db",
        "train.py",
    }


@pytest.mark.parametrize(
    "typed",
    [
        "trace 1 --out kept.json",
        "plot sample --out kept.svg",
        "export --table kernel --out kept.csv",
        "calculator --models none --out kept.html",
    ],
)
def test_a_file_that_exists_is_kept_unless_forced(perfctl, replayed, typed):
    kept = Path(typed.rpartition(" ")[2])
    kept.write_text("of the user")
    refused = perfctl(f"{typed} --store {replayed}")
    assert refused.code == 2 and "--force" in refused.err
    assert kept.read_text() == "of the user"
    assert perfctl(f"{typed} --store {replayed} --force").code == 0
    assert kept.read_bytes() != b"of the user"

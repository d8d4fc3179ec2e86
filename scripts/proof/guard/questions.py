"""What perfctl answers without a report: estimates, predictions, launch plans, its surface."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from recorder import Recorder, Values, help_texts, options_in

TORCHVISION = (
    "resnet18",
    "resnet50",
    "vgg11",
    "alexnet",
    "mobilenet_v2",
    "densenet121",
    "efficientnet_b0",
    "inception_v3",
    "googlenet",
    "squeezenet1_0",
    "shufflenet_v2_x1_0",
    "mnasnet1_0",
    "convnext_tiny",
    "vit_b_16",
    "swin_t",
    "regnet_y_400mf",
    "resnext50_32x4d",
    "deeplabv3_resnet50",
    "fcn_resnet50",
    "r3d_18",
)
MODELS = ["mnist_cnn", *(f"torchvision:{name}" for name in TORCHVISION), "unet", "bilstm"]
MODULES = "guard_modules.py"
INPUTS = {
    "grouped": "16x12x12",
    "depthwise": "16x12x12",
    "transposed": "16x9x9",
    "conv1d": "16x64",
    "conv3d": "3x8x16x16",
    "linear": "16",
    "lstm": "20x16",
    "gru": "20x16",
    "attention": "24x32",
    "causal": "4x24x32",
    "encoder": "24x32",
    "norms": "24x32",
    "einsum": "12x16",
    "frozen": "16",
    "shared": "16",
    "bilinear": "16",
}
"""Module of guard_modules.py -> shape of one sample."""
QUESTIONS = [
    (model, device, precision, mode)
    for model in ("mnist_cnn", "torchvision:resnet50", "torchvision:mobilenet_v2")
    for device, precision in (
        ("V100 SXM2 16 GB", "fp32"),
        ("A100 SXM4 40 GB", "tf32"),
        ("H100 SXM", "bf16"),
        ("T4", "fp16"),
    )
    for mode in ("train", "infer")
]
LANGUAGE_MODELS = [
    "--layers 32 --hidden 4096 --heads 32 --ffn 11008 --vocab 32000 --gated --seq 4096",
    (
        "--layers 32 --hidden 4096 --heads 32 --kv-heads 8 --ffn 14336 --vocab 128256 --gated "
        "--seq 8192"
    ),
    "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50304 --seq 1024",
    "--layers 96 --hidden 12288 --heads 96 --ffn 49152 --vocab 50257 --seq 2048",
]
SWEEPS = [
    " ".join(part for part in (tool, batches, more) if part)
    for tool in ("torch", "nsys", "ncu", "dlprof")
    for batches in ("--batches 16,32", "--batches 4 --device cuda")
    for more in ("", "--workload torchvision:resnet18", "--precision fp16", "--steps 3 --warmup 2")
] + [
    "ncu --batches 8 --device cuda -- python my.py {batch}",
    "torch --batches 8 -- python my.py {batch}",
    "nsys --batches 8 --device cuda -- python -m this {batch}",
    "nsys --batches 8 --device cuda -- torchrun --nproc-per-node 2 my.py {batch}",
]
JOBS = [
    "ncu --batches 16,32,64,128,256",
    "nsys --batches 16,32 --partition gpu",
    "torch --batches 4,8 --time 00:30:00",
    "dlprof --batches 16 --image perfctl.sif",
    "ncu --batches 16 --image perfctl.sif --account a1",
]
WRONG_CALLS = [
    "--version",
    "--help",
    "",
    "nonsense",
    "torch --batches abc",
    "torch --batches 0",
    "ingest",
    "ingest /nonexistent",
    "runs --store /nonexistent/x.db",
    "show 1 --store none.db",
    "ledger --store none.db",
    "report --store none.db",
    "estimate no_such_model",
    "estimate mnist_cnn --batch -1",
    "predict mnist_cnn --device Z9000",
    "compare 1 2 --store none.db",
    "query|select 1|--store|none.db",
    "mfu",
    "gate",
    "slurm status /nonexistent",
    "ncu --batches 16",
    "nsys --batches 16 -- /nonexistent/program",
    "scrub /nonexistent",
    "plot x --store none.db",
]
SIGNATURES = """
import inspect, json, perfctl
found = {name: getattr(perfctl, name) for name in perfctl.__all__}
print(json.dumps({name: sorted(inspect.signature(one).parameters) for name, one in found.items()
                  if callable(one) and not inspect.isclass(one)}))
"""


def estimate(recorder: Recorder) -> Values:
    """Yield parameters, FLOPs, bytes and memory of models and modules."""
    shutil.copy(Path(__file__).with_name(MODULES), recorder.work)
    calls = [(model, [model, "--batch", "16"]) for model in recorder.some(MODELS)]
    calls += [
        (f"module {name}", [f"{MODULES}:{name}", "--input", size, "--batch", "8"])
        for name, size in recorder.some(list(INPUTS.items()))
    ]
    calls += [
        (f"{model} memory", [model, "--batch", "64", "--memory", "16GiB", "--gpu", "a100"])
        for model in ("mnist_cnn", "torchvision:resnet50")
    ]
    for name, call in calls:
        for key, value in recorder.json("estimate", *call).items():
            yield f"{name} / {key}", value


def predict(recorder: Recorder) -> Values:
    """Yield predicted times, memory and cost, with their intervals."""
    for model, device, precision, mode in recorder.some(QUESTIONS):
        call = [
            "predict",
            model,
            "--device",
            device,
            "--precision",
            precision,
            "--mode",
            mode,
            "--batches",
            "1,16,128",
        ]
        for key, value in recorder.json(*call).items():
            yield f"{model} {device} {precision} {mode} / {key}", value


def mfu(recorder: Recorder) -> Values:
    """Yield the MFU of language models by every formula."""
    for sizes in LANGUAGE_MODELS:
        measured = ["--tokens-per-second", "10000", "--device", "H100", "--gpus", "8"]
        for key, value in recorder.json("mfu", *sizes.split(), *measured).items():
            yield f"{sizes} / {key}", value


def launch(recorder: Recorder) -> Values:
    """Yield the commands of sweeps, and the lines of job scripts."""
    (recorder.work / "my.py").write_text("print(1)\n")
    for sweep in recorder.some(SWEEPS):
        before, dashes, program = sweep.partition(" -- ")
        call = [*before.split(), "--dry-run", *(["--", *program.split()] if dashes else [])]
        done = recorder.call(*call)
        yield f"dry-run {sweep} / exit", done.returncode
        for line, count in recorder.plain(done.stdout).items():
            yield f"dry-run {sweep} / {line}", count
    for job in recorder.some(JOBS):
        out = recorder.work / f"job{JOBS.index(job)}"
        yield (
            f"job {job} / exit",
            recorder.call("slurm", "render", *job.split(), "--out", str(out)).returncode,
        )
        for script in sorted(out.rglob("*")):
            if script.suffix in (".sh", ".sbatch", ".slurm"):
                for line, count in recorder.plain(script.read_text()).items():
                    if not line.startswith("#") or line.startswith("#SBATCH"):
                        yield f"job {job} / {script.name} / {line}", count


def surface(recorder: Recorder) -> Values:
    """Yield the options of every command, and the parameters of the Python API."""
    for command, text in help_texts(recorder):
        for option in options_in(text):
            yield f"{' '.join(command) or 'perfctl'} {option}", True
    done = recorder.run(recorder.python, "-c", SIGNATURES)
    functions = json.loads(done.stdout) if done.returncode == 0 else {}
    for name, parameters in functions.items():
        for parameter in parameters:
            yield f"import perfctl / {name} / {parameter}", True


def exits(recorder: Recorder) -> Values:
    """Yield the exit codes of wrong calls."""
    for call in WRONG_CALLS:
        words = call.split("|" if "|" in call else None)
        yield " ".join(words) or "(nothing)", recorder.call(*words).returncode

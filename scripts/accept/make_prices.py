"""Make ``templates/prices.csv`` from a comparison of clouds: ``python scripts/accept/make_prices.py
cloud-gpus.csv > prices.csv``

``cloud-gpus.csv`` is docs/cloud-gpus/cloud-gpus.csv of github.com/the-full-stack/website (MIT); 257
offers. An offer is kept if its GPU is in the table of devices. Its form (PCIe, SXM) is filled in
where the provider has one alone in this instance; otherwise the offer is kept without it, and
prices no device. What is left out is counted by reason on stderr.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path

from perfctl.orchestrator.predict.prices import COLUMNS

PAGE = "Full Stack Deep Learning, page of 2023-10-30"
"""Source of the providers' rows in versions of the file before its index.md says "Updated October
30, 2023"."""
UNDATED = "Full Stack Deep Learning, undated: 2023-10-30 to 2025-04"
"""Rows that may have come after the page's date; the file's last commit is of April 2025."""
DATED = {"AWS", "Azure", "GCP", "Datacrunch", "Exoscale", "Jarvislabs", "Lambda", "Paperspace"}
ADDED = {"CR8DL": ("2024-02-08", "Full Stack Deep Learning, pull request 97")}
AWS = ("2026-08-26", "AWS us-east-1 list price, instances.vantage.sh via github.com/tsaol/aws-gpu")
"""Newer on-demand prices of us-east-1; "HBM3" and "NVSwitch" in that file say that they are SXM."""
NEWER = (
    ("p4d.24xlarge", "A100 SXM4 40 GB", 8, "21.957642"),
    ("p4de.24xlarge", "A100 SXM4 80 GB", 8, "27.44705"),
    ("p5.4xlarge", "H100 SXM5", 1, "6.88"),
    ("p5.48xlarge", "H100 SXM5", 8, "55.04"),
    ("p5en.48xlarge", "H200 SXM", 8, "63.296"),
    ("p6-b200.48xlarge", "B200", 8, "113.9328"),
    ("p6-b300.48xlarge", "B300", 8, "142.416"),
    ("g6e.xlarge", "L40S", 1, "1.861"),
    ("g6e.2xlarge", "L40S", 1, "2.24208"),
    ("g6e.4xlarge", "L40S", 1, "3.00424"),
    ("g6e.8xlarge", "L40S", 1, "4.52856"),
    ("g6e.16xlarge", "L40S", 1, "7.57719"),
    ("g6e.12xlarge", "L40S", 4, "10.49264"),
    ("g6e.24xlarge", "L40S", 4, "15.06559"),
    ("g6e.48xlarge", "L40S", 8, "30.13118"),
)

NAMES = {
    "A6000 (48 GB)": "RTX A6000",
    "RTX A6000 (48 GB)": "RTX A6000",
    "A5000 (24 GB)": "RTX A5000",
    "A4000 (16 GB)": "RTX A4000",
    "RTX5000 (16 GB)": "Quadro RTX 5000",
    "RTX4000 (8 GB)": "Quadro RTX 4000",
    "GH200 (96 GB)": "GH200 480 GB",
    "H100 HGX (80GB)": "H100 SXM5",
    "H100 PCIe (80GB)": "H100 PCIe",
    **{
        f"{name} ({size} GB)": name
        for name, size in (
            ("A10G", 24),
            ("A10", 24),
            ("A40", 48),
            ("L4", 24),
            ("T4", 16),
            ("P4", 8),
        )
    },
}
FORMS = (
    # provider, instance, GPU of the file, board
    ("AWS", r"p3\.", "V100 (16 GB)", "V100 SXM2 16 GB"),
    ("AWS", r"p3dn\.", "V100 (32 GB)", "V100 SXM2 32 GB"),
    ("Azure", r"NC.*A100", "A100 (80 GB)", "A100 PCIe 80 GB"),
    ("Azure", r"ND96amsr", "A100 (80 GB)", "A100 SXM4 80 GB"),
    ("Azure", r"NC.* v3$", "V100 (16 GB)", "V100 PCIe 16 GB"),
    ("GCP", r"a2-", "A100 (40 GB)", "A100 SXM4 40 GB"),
    ("GCP", r"n1-", "V100 (16 GB)", "V100 SXM2 16 GB"),
    ("GCP", r"n1-", "P100 (16 GB)", "P100 PCIe 16 GB"),
    ("Oracle Cloud", r"BM\.GPU\.A4", "A100 (40 GB)", "A100 SXM4 40 GB"),
    ("Oracle Cloud", r"BM\.GPU\.A100-v2", "A100 (80 GB)", "A100 SXM4 80 GB"),
    ("Oracle Cloud", r"BM\.GPU\.H100", "H100 (80 GB)", "H100 SXM5"),
)
WRONG = {
    ("Lambda", "A10G (24 GB)"): "Lambda rents the A10, not the A10G",
    ("Lambda", "Quadro RTX 6000 (24 GB)"): "vCPUs, memory and price are those of the row of 8 V100",
}


def gpu_of(row: dict[str, str]) -> str:
    for provider, instance, gpu, board in FORMS:
        if (row["Cloud"], row["GPU Type"]) == (provider, gpu) and re.match(instance, row["Name"]):
            return board
    return NAMES.get(row["GPU Type"], re.sub(r"[()]", "", row["GPU Type"]))


def why_not(row: dict[str, str], rows: list[dict[str, str]]) -> str | None:
    """Why a row is left out; None if it is kept."""
    same = [
        other
        for other in rows
        if {**other, "On-demand": "", "Per-GPU": ""} == {**row, "On-demand": "", "Per-GPU": ""}
    ]
    if row["GPU Type"].startswith("K80"):
        return "K80: the table of devices begins with Pascal"
    if not row["On-demand"]:
        return "no price of the instance, only one of a GPU that does not fit it"
    if (row["Cloud"], row["GPU Type"]) in WRONG:
        return WRONG[row["Cloud"], row["GPU Type"]]
    if len({other["On-demand"] for other in same}) > 1:
        return "two prices of one configuration"
    if next(other for other in same) is not row:
        return "the same row again"
    if row["Cloud"] == "AWS" and row["Name"] in {instance for instance, *_ in NEWER}:
        return "AWS has a newer price in this table"
    return None


def main(path: str) -> None:
    rows = list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines()))
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(COLUMNS)
    reasons = Counter[str]()
    day, source = AWS
    for instance, gpu, count, price in NEWER:
        out.writerow(("AWS", instance, gpu, count, price, "", "us-east-1", day, source))
    for row in rows:
        if reason := why_not(row, rows):
            reasons[reason] += 1
            continue
        dated = ("2023-10", PAGE if row["Cloud"] in DATED else UNDATED)
        named = row["Name"] or (f"{row['vCPUs']} vCPUs" if row["Cloud"] == "Cudo Compute" else "")
        prices = (row["On-demand"], row["Spot"])
        out.writerow(
            (
                row["Cloud"],
                named,
                gpu_of(row),
                row["GPUs"],
                *prices,
                "",
                *ADDED.get(row["Cloud"], dated),
            )
        )
    for reason, count in reasons.most_common():
        print(f"{count:4} left out: {reason}", file=sys.stderr)
    print(f"{len(rows) - reasons.total():4} of {len(rows)} kept", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])

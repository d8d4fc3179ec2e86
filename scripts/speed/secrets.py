"""CPU time a byte of the search for secrets, in texts that are bad for it:
``python scripts/speed/secrets.py [--megabytes N ...]``.

Each text repeats what almost is a secret, or what is one. Time in proportion to the text means the
same figure in each column.
"""

from __future__ import annotations

import argparse
import time

from perfctl import redact

SHAPES = {
    "figures, no secret": "0.25,1700,void gemm<float>(int)\n",
    "names of secrets": "api-keyprivatekeypwd.PATH=auth",
    "settings that are secrets": "HF_TOKEN=a1b2c3d4e5\n",
    "tokens that go on past a word": "ATATT3A7A7A7A7A7A7=",
    "tokens of 69 characters that overlap": "xoxb-whsec_SG.",
    "long words beside services": "datadog=aaaaaaaaaaaaaaa1",
    "hashes beside a service": "wandb 0123456789abcdef0123456789abcdef01234567 ",
    "logins": "https://user:pa@",
    "options of programs": "mysql -pa ",
    "keys without an end": "-----BEGIN RSA PRIVATE KEY-----",
    "one value without an end": 'X_TOKEN="' + "a1B2" * 250,
}


def seconds(text: bytes) -> float:
    """CPU time of one search."""
    started = time.process_time()
    redact.secrets_in(text)
    return time.process_time() - started


def main() -> None:
    """Print a row for each shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    asked = parser.parse_args()
    print("us a byte at", *(f"{size:>6} MB" for size in asked.megabytes))
    for name, shape in SHAPES.items():
        bad = shape.encode()
        rates = []
        for size in asked.megabytes:
            text = (bad * (size * 1_000_000 // len(bad) + 1))[: size * 1_000_000]
            rates.append(min(seconds(text) for _ in range(2)) / size)
        print(*(f"{rate:9.3f}" for rate in rates), f"  {name}", flush=True)


if __name__ == "__main__":
    main()

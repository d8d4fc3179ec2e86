"""Check the installed packages for known vulnerabilities with pip-audit.

    python scripts/proof/audit.py

Looks up the packages of this Python environment. If one has a vulnerability, exits 1 and names
packages, versions and fixes. If the service cannot be reached, it says how many packages could not
be looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys


def main() -> int:
    """Exit code: 1 when there is a known vulnerability, or no answer from pip-audit at all."""
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--skip-editable",
        "--progress-spinner",
        "off",
        "--format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        print(f"audit: pip-audit gave no list of packages (it said: {said})", file=sys.stderr)
        return 1
    unknown = [package for package in packages if "skip_reason" in package]
    bad = [package for package in packages if package.get("vulns")]
    for package in bad:
        for found in package["vulns"]:
            fixed = ", ".join(found.get("fix_versions", ())) or "no version yet"
            print(f"{package['name']} {package['version']}: {found['id']}, mended in {fixed}")
    looked_up = len(packages) - len(unknown)
    print(
        f"audit: {looked_up} of {len(packages)} packages looked up, {len(bad)} with known "
        "vulnerabilities",
        end="",
    )
    print(
        "; of the others nothing is known: the service was not reached, or does not know them"
        if unknown
        else ""
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())

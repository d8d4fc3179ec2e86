#!/bin/sh
# Installs Debian's nsight-systems and nsight-compute (non-free component) on Debian 12 (nsys 2022.4) or 13 (2023.4) and enables nsys to
# write .nsys-rep files: Debian's package lacks the link to its own importer.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

# apt-get waits itself for dpkg's lock (DPkg::Lock::Timeout), but not for the lock of its lists, which "update" takes.
apt() {
    log=$(mktemp)
    until=$(($(date +%s) + ${APT_WAIT:-300}))
    while ! apt-get -q -o DPkg::Lock::Timeout="${APT_WAIT:-300}" "$@" 2>"$log"; do
        if ! grep -qi "could not get lock\|unable to \(acquire\|lock\)" "$log" || [ "$(date +%s)" -ge "$until" ]; then
            cat "$log" >&2
            rm -f "$log"
            return 1
        fi
        echo "install_nsight_debian.sh: another program uses apt; trying again in 2 s" >&2
        sleep 2
    done
    cat "$log" >&2
    rm -f "$log"
}

if [ "$(id -u)" -ne 0 ]; then
    echo "install_nsight_debian.sh: needs root: run it with sudo" >&2
    exit 1
fi
if ! have apt-get; then
    echo "install_nsight_debian.sh: this is not a Debian system; get the tools from NVIDIA's developer site" >&2
    exit 1
fi

if ! have nsys || ! have ncu; then
    # A separate list, so that no existing one is edited. Same mirror and keys as the system's main list.
    mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
    [ -n "$mirror" ] || mirror=$(sed -n 's/^deb *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list 2>/dev/null | head -n 1)
    if [ -z "$mirror" ]; then
        echo "install_nsight_debian.sh: found no Debian mirror in /etc/apt; add one and try again" >&2
        exit 1
    fi
    codename=$(sed -n "s/^VERSION_CODENAME=//p" /etc/os-release)
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $codename contrib non-free" \
        >/etc/apt/sources.list.d/perfctl-nsight.list
    apt update
    DEBIAN_FRONTEND=noninteractive apt install -y --no-install-recommends nsight-systems nsight-compute
fi

lib=/usr/lib/x86_64-linux-gnu/nsight-systems
if [ -d /usr/lib/nsight-systems/host-linux-x64 ] && [ ! -e "$lib/host-linux-x64" ]; then
    ln -s ../../nsight-systems/host-linux-x64 "$lib/host-linux-x64"
fi

nsys --version
ncu --version | sed -n '$p'

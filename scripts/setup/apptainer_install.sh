#!/usr/bin/env bash
# apptainer_install.sh - real Apptainer on Debian 12 (bookworm), as root, from Debian packages only.
#
# Apptainer is in Debian sid, not in bookworm, and its binaries need symbols that bookworm's libc lacks:
# __isoc23_strtol/__isoc23_strtoul (GLIBC_2.38). This script takes the sid .deb, puts trixie's libc
# into /opt/apptainer-libc, points the two executables at that libc, repacks the package and installs
# it with apt, so that "apt-get purge apptainer" removes it. The system's own libc does not change.
# sid and trixie are not added to the machine's sources: apt reads them through a private lists folder.
set -euo pipefail
command -v apptainer >/dev/null && { apptainer --version; exit 0; }
W=$(mktemp -d); trap 'rm -rf "$W"' EXIT
export DEBIAN_FRONTEND=noninteractive

mkdir -p "$W"/{src,lists/partial,deb}
MIRROR=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources)   # the machine's own Debian mirror
cat >"$W/src/sid.sources" <<S
Types: deb
URIs: $MIRROR
Suites: sid trixie
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
S
APT=(-o Dir::State::lists="$W/lists" -o Dir::Etc::sourceparts="$W/src" -o Dir::Etc::sourcelist=/dev/null
     -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
apt-get "${APT[@]}" -q update
(cd "$W/deb" && apt-get "${APT[@]}" -q download apptainer libc6/trixie)

apt-get -q update
apt-get install -q -y --no-install-recommends patchelf squashfs-tools uidmap containernetworking-plugins squashfuse fuse2fs

L=/opt/apptainer-libc
mkdir -p $L
dpkg-deb -x "$W"/deb/libc6_*.deb "$W/libc"
for so in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libresolv.so.2 libpthread.so.0 libdl.so.2 librt.so.1; do
    install -m 755 "$(find "$W/libc" -name $so -type f | head -1)" $L/
done

dpkg-deb -R "$W"/deb/apptainer_*.deb "$W/pkg"
for exe in "$W/pkg/usr/bin/apptainer" "$W/pkg/usr/lib/x86_64-linux-gnu/apptainer/bin/starter"; do
    patchelf --set-interpreter $L/ld-linux-x86-64.so.2 --set-rpath $L:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu "$exe"
done
sed -i 's/libc6 (>= 2\.38)/libc6/; s/^Version: \(.*\)/Version: \1+bookworm1/' "$W/pkg/DEBIAN/control"
(cd "$W/pkg" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb -Znone -b "$W/pkg" "$W/apptainer.deb" >/dev/null
apt-get install -q -y --no-install-recommends "$W/apptainer.deb"
# where root itself lacks CAP_SYS_RESOURCE (virtual machines, containers), "full" would ask for it and fail:
# ERROR Requesting capability set ...
apptainer config global --set "root default capabilities" file
if [[ -w /dev/fuse ]]; then
    chmod 666 /dev/fuse || true     # ordinary users mount SIF images through FUSE
fi
apptainer --version

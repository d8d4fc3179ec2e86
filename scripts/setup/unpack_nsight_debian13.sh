#!/bin/sh
# unpack_nsight_debian13.sh FOLDER: fetch Debian 13's nsight-compute (2024.1) and nsight-systems (2023.4) and unpack them into
# FOLDER, beside whatever is installed. FOLDER/bin then has ncu and nsys, to test argument lists against:
#     PATH=FOLDER/bin:$PATH pytest tests/launch/profilers
set -eu
mkdir -p "$1"
folder=$(realpath "$1")
cd "$folder"
mkdir -p apt/lists/partial apt/cache/archives/partial debs root bin
: >apt/status
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
[ -n "$mirror" ] || mirror=$(sed -n 's/^deb *\(\[[^]]*\] *\)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list 2>/dev/null | head -n 1)
if [ -z "$mirror" ]; then
    echo "unpack_nsight_debian13.sh: found no Debian mirror in /etc/apt; add one and try again" >&2
    exit 1
fi
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" >apt/sources.list
cat >apt/apt.conf <<END
Dir::Etc::sourcelist "$folder/apt/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$folder/apt/lists";
Dir::State::status "$folder/apt/status";
Dir::Cache "$folder/apt/cache";
END
export APT_CONFIG="$folder/apt/apt.conf"
apt-get update -q
(cd debs && apt-get download -q nsight-compute nsight-compute-target nsight-systems nsight-systems-target)
for package in debs/*.deb; do
    dpkg -x "$package" root
done
rm -r debs
ln -s ../../nsight-systems/host-linux-x64 root/usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64
printf '#!/bin/sh\nexec "%s/root/usr/lib/nsight-compute/ncu" "$@"\n' "$folder" >bin/ncu
printf '#!/bin/sh\nexec "%s/root/usr/lib/nsight-systems/target-linux-x64/nsys" "$@"\n' "$folder" >bin/nsys
chmod +x bin/ncu bin/nsys
bin/ncu --version | sed -n '$p'
bin/nsys --version

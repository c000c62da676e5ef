#!/bin/sh
# Installs the Debian 12 packages that building and testing Parfait need, and only those that are
# missing. Run as root, or as a user who may use sudo.
set -eu

packages="
  g++ cmake ninja-build make git binutils python3 time
  libfmt-dev libsimdjson-dev libcli11-dev nlohmann-json3-dev
  libgtest-dev libbenchmark-dev libdnnl-dev
  libpng-dev libutf8proc-dev
  g++-aarch64-linux-gnu qemu-user googletest
  clang clang-format libclang-rt-14-dev
"

missing=""
for package in $packages; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "installing:$missing"
sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: run as root or install sudo to add:$missing" >&2; exit 1; }
  sudo=sudo
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null

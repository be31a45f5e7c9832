#!/bin/sh
# Makes a Debian with Python out of the package mirror that apt itself uses, for where no image registry answers:
#     images/base/offline.sh [TAG [SUITE]]
# The mirrors are read from apt's own sources, so this works wherever `apt-get install` does. Needs root, debootstrap
# and a Docker daemon (DOCKER_HOST, or the usual socket). Then: skylease images build --base TAG
set -eu
tag=${1:-skylease/debian-python:bookworm}
suite=${2:-bookworm}
# python-is-python3 and pip make it answer to the same words as the python:…-slim images.
packages=ca-certificates,netbase,tzdata,python3,python3-pip,python-is-python3

fail() { echo "offline.sh: $*" >&2; exit 1; }

command -v apt-get >/dev/null || fail "this is not a Debian: apt-get is missing; use a base image from a registry instead"
command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
command -v docker >/dev/null || fail "the docker command is missing: apt-get install docker.io"
[ "$(id -u)" = 0 ] || fail "debootstrap needs root: run it with sudo"
docker version >/dev/null 2>&1 || fail "no Docker daemon answers at ${DOCKER_HOST:-the default socket}: start it, or set DOCKER_HOST"

# One line per source: address, codename, component. Signed by Debian's own keyring, as debootstrap checks.
sources=$(apt-get indextargets --format '$(ORIGIN) $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
    sed -n "s/^Debian \(.*\) \($suite[a-z-]*\) main\$/\1 \2 main/p" | sort -u)
mirror=$(printf '%s\n' "$sources" | sed -n "s/ $suite main\$//p" | head -n 1)
[ -n "$mirror" ] || fail "apt has no source for Debian $suite (or no lists yet): apt-get update, or add one"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP INT TERM
echo "offline.sh: debootstrap of $suite, about a minute" >&2
debootstrap --variant=minbase --include="$packages" "$suite" "$work/root" "$mirror" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log" "$work/root/debootstrap/debootstrap.log" 2>/dev/null >&2; fail "debootstrap failed"; }

root=$work/root
printf '%s\n' "$sources" | sed 's/^/deb /' >"$root/etc/apt/sources.list"
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED # inside a sandbox nobody else manages it
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/var/log/*
find "$root/usr/share/doc" "$root/usr/share/man" "$root/usr/share/locale" -mindepth 1 -delete
# Otherwise apt would bring the documentation back with the next package.
printf 'path-exclude=/usr/share/%s/*\n' doc man locale >"$root/etc/dpkg/dpkg.cfg.d/slim"
# Nor keep what it downloads: as in Debian's own container images.
printf 'Dir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\nDPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };\n' \
    >"$root/etc/apt/apt.conf.d/slim"
: >"$root/etc/resolv.conf"
: >"$root/etc/hostname"

tar -C "$root" --numeric-owner --exclude='./dev/*' --exclude='./proc/*' --exclude='./sys/*' -cf - . |
    docker import -c 'ENV LANG=C.UTF-8' -c 'CMD ["python3"]' - "$tag" >"$work/id" || fail "docker import failed"
echo "$tag $(cat "$work/id")"

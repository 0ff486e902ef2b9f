#!/usr/bin/env bash
# Installs what is missing of scripts/debian-packages.txt. Does nothing, quickly, when nothing is missing.
# TROUPE_SKIP_INSTALL=1 skips it, for systems that supply the same tools another way.
. "$(dirname "$0")/lib.sh"

[ "${TROUPE_SKIP_INSTALL:-0}" = 1 ] && exit 0
command -v dpkg-query >/dev/null 2>&1 ||
  die "this is no Debian system; install what scripts/debian-packages.txt names and set TROUPE_SKIP_INSTALL=1"

mapfile -t listed < <(sed 's/#.*//; s/[[:space:]]//g; /^$/d' scripts/debian-packages.txt)
wanted=()
for entry in "${listed[@]}"; do
  case "$entry" in
    *'|'*) command -v "${entry#*|}" >/dev/null 2>&1 || wanted+=("${entry%%|*}") ;;
    *) wanted+=("$entry") ;;
  esac
done
installed=$(dpkg-query -W -f='${binary:Package} ${db:Status-Status}\n' 2>/dev/null |
  awk '$2 == "installed" {sub(/:.*/, "", $1); print $1}')
mapfile -t missing < <(comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) <(sort -u <<<"$installed"))
[ "${#missing[@]}" -eq 0 ] && exit 0

say "Installing ${#missing[@]} Debian packages"
note "${missing[*]}"
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 -o Acquire::Retries=3)
as_root "${apt[@]}" update ||
  die "the package lists could not be fetched; check the network and /etc/apt/sources.list, then run: make install-deps"
# Of servers only the programs are wanted, for tests: nothing is to listen on this host because of them.
guard=/usr/sbin/policy-rc.d
if [ ! -e "$guard" ]; then
  printf '#!/bin/sh\nexit 101\n' | as_root tee "$guard" >/dev/null
  as_root chmod 755 "$guard"
  trap 'as_root rm -f "$guard"' EXIT
fi
as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
  die "some Debian packages could not be installed (the lines above name them); then run: make install-deps"
for pair in openssh-server:ssh.service openssh-server:ssh.socket slurmctld:slurmctld.service slurmd:slurmd.service; do
  case " ${missing[*]} " in
    *" ${pair%%:*} "*) as_root systemctl disable --quiet "${pair#*:}" 2>/dev/null || true ;;
  esac
done

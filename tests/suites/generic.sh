# The generic tests of a built xfstests in the directory XFSTESTS, on two loop devices, as `run` sources it.
# XFSTESTS_TESTS names others than the group generic/quick (`generic/013 generic/475`, `-g generic/auto`),
# XFSTESTS_LIMIT seconds that a test may take (1800). Every image is checked before it is mounted, so what one test
# leaves is looked at by the next. What is printed: tests that fail, and what the checks find.

# The helpers of mount(8) that this suite needs, as files in $1.
#
# - mount.fuse.pando checks the image first. Some tests leave the `.pando` away, hence mount.fuse.
# - umount.fuse.pando does not tell of a daemon that godown has killed: a file system of the kernel does not either.
# - df says `fuse`, since xfstests compares that with FSTYP.
# - godown is what xfstests shuts a file system down with. The ioctl does not come to a FUSE server with its argument,
#   so this kills the daemon, and is put over the program of xfstests. With -f, what was written before is durable.
generic_helpers() {
  local h=$1
  mkdir -p "$h/sbin" "$h/bin" "$h/real"
  ln -s "$PANDO" "$h/real/mount.fuse.pando"; ln -s "$PANDO" "$h/real/umount.fuse.pando"
  cat > "$h/sbin/mount.fuse.pando" << END
#!/bin/bash
[[ " \$* " == *remount* ]] || "$PANDO" check "\$1" > "$h/check.\$\$" 2>&1 || grep -q 'is mounted on' "$h/check.\$\$" ||
  { echo "check of \$1:"; tail -5 "$h/check.\$\$"; } >> "$h/checks"
rm -f "$h/check.\$\$"
exec "$h/real/mount.fuse.pando" "\$@"
END
  ln -s mount.fuse.pando "$h/sbin/mount.fuse"
  cat > "$h/sbin/umount.fuse.pando" << END
#!/bin/bash
"$h/real/umount.fuse.pando" "\$@" 2> "$h/umount.\$\$"; rc=\$?
if grep -q 'its daemon \(was\|had been\) killed' "$h/umount.\$\$"; then rc=0; else cat "$h/umount.\$\$" >&2; fi
rm -f "$h/umount.\$\$"
exit \$rc
END
  cat > "$h/bin/df" << 'END'
#!/bin/bash
/usr/bin/df "$@" | sed 's/ fuse\.pando / fuse       /'
exit "${PIPESTATUS[0]}"
END
  cat > "$h/godown" << 'END'
#!/bin/bash
flush=false
while [[ $1 == -* ]]; do [[ $1 == -f ]] && flush=true; shift; done
dir=$(readlink -f "$1")
# syncfs brings the pages to the daemon, and fsync makes them durable.
$flush && { sync -f "$dir" && sync "$dir" || exit 1; }
for p in $(pgrep -f -- "mount --daemon .* $dir\$"); do
  kill -9 "$p"
  while [[ -e /proc/$p/exe ]]; do sleep 0.05; done
  exit 0
done
echo "godown: nothing is mounted on $dir"; exit 1
END
  chmod +x "$h"/sbin/* "$h/bin/df" "$h/godown"
}

# Those of the tests and what they have started, but for daemons.
generic_left() {
  local p
  for p in $(grep -lzs "^TEST_DIR=$TEST_DIR\$" /proc/[0-9]*/environ | cut -d/ -f3); do
    [[ $p == $$ || /proc/$p/exe -ef $PANDO ]] || echo "$p"
  done
}

# Runs the tests in the mount namespace that it is in, where $1/sbin lies over /usr/sbin; leaves out those in $2. It lets
# go of the other mounts that the namespace begins with, since it would keep their images in use.
generic_inside() {
  local h=$1 check p dir
  awk '$3 == "fuse.pando" { print $2 }' /proc/self/mounts | xargs -r umount -l
  mount -t overlay -o "lowerdir=$h/sbin:/usr/sbin" none /usr/sbin &&
    mount --bind "$h/godown" "$XFSTESTS/src/godown" && cd "$XFSTESTS" || return 2
  # shellcheck disable=SC2086
  PATH=$h/bin:$PATH ./check -e "$2" ${XFSTESTS_TESTS:--g generic/quick} &
  check=$!
  trap 'kill -9 $(generic_left)' TERM
  # A test that takes too long is ended; xfstests says that it has failed.
  while sleep 5; kill -0 $check 2>/dev/null; do
    for p in $(pgrep -f "bash .*tests/generic/[0-9]+\$"); do
      grep -qzs "^TEST_DIR=$TEST_DIR\$" "/proc/$p/environ" || continue
      (($(ps -o etimes= -p "$p" || echo 0) > ${XFSTESTS_LIMIT:-1800})) && kill "$p"
    done
  done
  for dir in "$SCRATCH_MNT" "$TEST_DIR"; do mountpoint -q "$dir" && { umount "$dir" || umount -l "$dir"; }; done
}

generic() {
  local h=$work/generic dev
  [[ -x ${XFSTESTS:-}/check && -x $XFSTESTS/src/godown ]] || { echo "skipped: XFSTESTS names no built xfstests"; return; }
  for dev in fsgqa fsgqa2 123456-fsgqa; do
    getent passwd "$dev" >/dev/null || { echo "skipped: xfstests wants users fsgqa, fsgqa2 and 123456-fsgqa"; return; }
  done
  mkdir -p "$h/test" "$h/scratch" "$h/results"
  generic_helpers "$h"
  truncate -s 8G "$h/1.img" "$h/2.img"
  "$PANDO" mkfs "$h/1.img" >/dev/null && "$PANDO" mkfs "$h/2.img" >/dev/null || exit 2
  export FSTYP=fuse FUSE_SUBTYP=.pando TEST_DIR=$h/test SCRATCH_MNT=$h/scratch RESULT_BASE=$h/results HOST_OPTIONS=$h/config
  TEST_DEV=$(losetup -f --show "$h/1.img") && loops+=("$TEST_DEV") || exit 2
  SCRATCH_DEV=$(losetup -f --show "$h/2.img") && loops+=("$SCRATCH_DEV") || exit 2
  export TEST_DEV SCRATCH_DEV
  # Whoever had them before may have left them read-only.
  blockdev --setrw "$TEST_DEV" "$SCRATCH_DEV"
  : > "$HOST_OPTIONS"
  # The first writes other file systems over the scratch device, and wants a mkfs.fuse; the other shuts down by ioctl.
  local out=generic/740,generic/530
  if ! (ulimit -f 1000000 && ulimit -f unlimited) 2>/dev/null; then
    echo "generic: 394, 531 and 564 are left out, since they want to raise limits" >&2
    out+=,generic/394,generic/531,generic/564
  fi
  comparing unshare -m --propagation private bash -c "$(declare -f generic_left generic_inside)
    generic_inside \"\$@\"" generic "$h" "$out" > "$h/log" 2>&1
  sed -n 's/^Failures: //p' "$h/log" | tr ' ' '\n' | sed '/^$/d; s/^/failed: /'
  grep -q '^Ran: ' "$h/log" || { echo "xfstests did not run:"; tail -5 "$h/log"; }
  cat "$h/checks" 2>/dev/null
  # For whoever looks: not compared, as it depends on the kernel.
  local ran not
  ran=$(sed -n 's/^Ran: //p' "$h/log" | wc -w) not=$(sed -n 's/^Not run: //p' "$h/log" | wc -w)
  echo "generic: $((ran - not)) tests run, $not that could not be" >&2
  if [[ ${KEEP:-} ]]; then cp -r "$h/results" "$h/log" "$KEEP"; fi
}

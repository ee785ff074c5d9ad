# Programs that people run, each as a function of the directory that it works in. A program must work there twice: first
# where nothing is, then in a clone of what its first run has left. `need` skips one that is not installed.
# shellcheck shell=bash

need() {
  for program; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
  done
}

# What a tree is: names, kinds, modes, owners, sizes, times, links, contents, extended attributes and access lists.
tree_of() {
  (cd "$1" && find . -printf '%P %y %m %U:%G %T@ %l\n' | sort
   find . -type f -print0 | sort -z | xargs -0r sha256sum
   find . -type f -links +1 -printf '%i %P\n' | sort -k2 | awk '{ if (!($1 in n)) n[$1] = ++c; print n[$1], $2 }'
   find . ! -type l -print0 | sort -z | xargs -0r getfattr -h -d -m - -e hex -- 2>/dev/null
   find . ! -type l -print0 | sort -z | xargs -0r getfacl -pn -- 2>/dev/null)
}

a_tree() {
  mkdir -p "$1/src/deep/er" "$1/empty"
  for i in $(seq 200); do echo "file $i" > "$1/src/f$i"; done
  head -c 3000000 /dev/urandom > "$1/src/deep/large"
  truncate -s 20M "$1/src/sparse"; printf x | dd of="$1/src/sparse" bs=1 seek=9000000 conv=notrunc status=none
  for i in $(seq 40); do ln "$1/src/f$i" "$1/src/deep/er/link$i"; done
  ln -s src/f1 "$1/link"; ln -s nowhere "$1/dangling"; mkfifo "$1/fifo"; mknod "$1/null" c 1 3
  setfattr -n user.note -v "a note" "$1/src/f2"; setfattr -n trusted.t -v t "$1/src/deep"
  setfacl -m u:1002:rw,g:1003:r "$1/src/f3"; setfacl -m d:u:1002:rwx "$1/src/deep"
  chmod 4711 "$1/src/f4"; chmod 1777 "$1/empty"; chown 1001:1002 "$1/src/f5"
  find "$1" -exec touch -h -d '2003-04-05 06:07:08.091011121' {} +
}

prog_copies() {
  need rsync setfacl setfattr tar
  [[ -e $1/tree ]] || a_tree "$1/tree"
  tree_of "$1/tree" > "$1/wanted"
  rm -rf "$1"/copy.*
  cp -a "$1/tree" "$1/copy.cp"
  rsync -aHAX "$1/tree/" "$1/copy.rsync/"
  mkdir "$1/copy.tar"; tar -C "$1/tree" --format=pax --xattrs --xattrs-include='*' --acls -cf "$1/tree.tar" .
  tar -C "$1/copy.tar" --xattrs --xattrs-include='*' --acls -xpf "$1/tree.tar"
  (cd "$1/tree" && find . -depth -print0 | cpio -0o -H newc 2>/dev/null) > "$1/tree.cpio" || true
  "$PANDO" cp -a "$1/tree" "$1/copy.clone"
  for copy in cp rsync tar clone; do
    tree_of "$1/copy.$copy" | sed 's/\.[0-9]* / /' > "$1/got"
    sed 's/\.[0-9]* / /' "$1/wanted" | diff - "$1/got" > "$1/diff" || { echo "$copy:"; head -20 "$1/diff"; return 1; }
  done
}

prog_sqlite() {
  need sqlite3
  for mode in wal delete; do
    db=$1/$mode.db
    sqlite3 "$db" "pragma journal_mode=$mode; create table if not exists t(i integer primary key, s text);" >/dev/null
    before=$(sqlite3 "$db" 'select count(*) from t')
    for n in 1 2 3 4; do
      for i in $(seq 25); do
        echo ".timeout 60000
          insert into t(s) select hex(randomblob(200)) from (select 1 union select 2 union select 3);"
      done | sqlite3 "$db" &
    done
    wait
    [[ $(sqlite3 "$db" 'select count(*) from t') == $((before + 300)) ]]
    [[ $(sqlite3 "$db" 'pragma integrity_check') == ok ]]
    sqlite3 "$db" vacuum
    sqlite3 "$db" ".backup $1/backup.db"
    [[ $(sqlite3 "$1/backup.db" 'select count(*) from t') == $((before + 300)) ]]
  done
}

prog_git() {
  need git
  cd "$1"
  export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
  git config --global --get-all safe.directory '\*' >/dev/null 2>&1 || export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
  [[ -e repo ]] || git init -q repo
  cd repo
  for d in $(seq 20); do mkdir -p "d$d"; for f in $(seq 50); do echo "$d $f $RANDOM" > "d$d/f$f"; done; done
  git add -A && git commit -qm "one $RANDOM"
  git checkout -qb "b$RANDOM$RANDOM"; echo x$RANDOM > d1/f1; git commit -qam two; git checkout -q -
  git gc -q --aggressive && git fsck --strict 2>&1 | { ! grep -E 'error|missing|corrupt'; }
  rm -rf ../local ../shared ../wt
  git clone -q --local . ../local && git -C ../local fsck 2>&1 | { ! grep -E 'error|missing'; }
  git clone -q --shared . ../shared
  git worktree prune; git worktree add -q --force --detach ../wt; git -C ../wt status --porcelain | { ! grep .; }
  git stash list >/dev/null; [[ -z $(git status --porcelain) ]]
  git worktree remove --force ../wt; git repack -qad; git fsck 2>&1 | { ! grep -E 'error|missing'; }
}

prog_postgres() {
  local bin; bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
  [[ -n $bin ]] || { echo "skipped: PostgreSQL is not installed"; exit 77; }
  chown postgres "$1"
  local data=$1/data
  pg() { setpriv --reuid=postgres --regid=postgres --init-groups env PGHOST="$sockets" "$@"; }
  # Names of sockets have to be short.
  sockets=$(mktemp -d); chown postgres "$sockets"
  [[ -e $data ]] || pg "$bin/initdb" -D "$data" >/dev/null
  rm -f "$data/postmaster.pid"
  start() { pg "$bin/pg_ctl" -w -D "$data" -o "-k $sockets -c listen_addresses=" -l "$1/log" start >/dev/null; }
  start "$1"
  pg "$bin/pgbench" -i -q -s 2 postgres >/dev/null 2>&1
  pg "$bin/pgbench" -c 4 -T 4 postgres >/dev/null 2>&1
  pg "$bin/pgbench" -c 4 -T 20 postgres >/dev/null 2>&1 & local load=$!
  sleep 2; kill -9 "$(head -1 "$data/postmaster.pid")"; wait "$load" || true; sleep 1; rm -f "$sockets"/.s.*
  rm -f "$data/postmaster.pid"
  start "$1"
  pg "$bin/psql" -qAt -c 'create extension if not exists amcheck' \
    -c "select count(bt_index_check(c.oid)) from pg_class c join pg_am a on a.oid = c.relam where amname = 'btree' and relpersistence = 'p'" postgres >/dev/null
  [[ $(pg "$bin/psql" -qAt -c 'select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) from pgbench_tellers)' postgres) == t ]]
  pg "$bin/psql" -qAt -c 'drop database if exists copy' -c 'create database copy template postgres' postgres
  pg "$bin/pg_ctl" -w -D "$data" -m fast stop >/dev/null
  rm -rf "$sockets"
}

prog_pip() {
  need python3
  [[ -e $1/venv ]] || python3 -m venv "$1/venv"
  "$1/venv/bin/python" -m pip install -q --disable-pip-version-check --force-reinstall attrs packaging 2>&1 | grep -v notice || true
  "$1/venv/bin/python" -c 'import attrs, packaging.version; assert packaging.version.Version("1.0") > packaging.version.Version("0.9")'
  "$1/venv/bin/python" -m compileall -q "$1/venv/lib"
}

prog_npm() {
  need npm node
  cd "$1"
  [[ -e package.json ]] || npm init -y >/dev/null 2>&1
  npm install --no-audit --no-fund --cache "$1/cache" left-pad@1 semver@7 >/dev/null 2>&1
  node -e 'if (require("semver").compare("1.2.3", "1.2.4") !== -1) process.exit(1)'
  rm -rf node_modules; npm ci --no-audit --no-fund --cache "$1/cache" --prefer-offline >/dev/null 2>&1
  node_modules/.bin/semver 1.2.3 >/dev/null
}

# pnpm links files from its store into node_modules.
prog_pnpm() {
  need npm node
  cd "$1"
  [[ -e pnpm ]] || npm install --no-audit --no-fund --prefix "$1/pnpm" pnpm@9 >/dev/null 2>&1
  local pnpm=$1/pnpm/node_modules/.bin/pnpm file=node_modules/semver/package.json
  mkdir -p app; cd app
  echo '{"name": "app", "version": "1.0.0", "dependencies": {"left-pad": "1.3.0", "semver": "7.6.3"}}' > package.json
  rm -rf node_modules; "$pnpm" install --store-dir "$1/store" --package-import-method hardlink
  node -e 'if (require("semver").compare("1.2.3", "1.2.4") !== -1) process.exit(1)'
  [[ $(stat -Lc %h $file) == 2 ]]
  rm -rf node_modules; "$pnpm" install --offline --frozen-lockfile --store-dir "$1/store"; "$pnpm" store status --store-dir "$1/store"
  [[ $(stat -Lc %h $file) == 2 ]]
}

prog_cargo() {
  need cargo
  cd "$1"
  export CARGO_TARGET_DIR=$1/target
  [[ -e app ]] || cargo new -q --vcs none app
  cd app
  echo "pub fn f() -> u64 { $RANDOM }" > src/lib.rs
  printf 'fn main() { println!("{}", app::f()); }\n' > src/main.rs
  # Offline: only the standard library is needed.
  cargo build -q --offline && cargo test -q --offline >/dev/null && "$1/target/debug/app" >/dev/null
  [[ -z $(cargo build --offline 2>&1 | grep Compiling) ]]
}

prog_make() {
  need make cc
  cd "$1"
  mkdir -p src
  for i in $(seq 60); do printf 'int f%d(int x) { return x + %d; }\n' "$i" "$i" > "src/f$i.c"; done
  { for i in $(seq 60); do echo "int f$i(int);"; done; echo 'int main(void) { int x = 0;'
    for i in $(seq 60); do echo "x = f$i(x);"; done; echo 'return x == 1830 ? 0 : 1; }'; } > src/main.c
  printf 'OBJ = $(patsubst %%.c,%%.o,$(wildcard src/*.c))\nprog: $(OBJ)\n\tcc -o $@ $^\n%%.o: %%.c\n\tcc -c -o $@ $<\nclean:\n\trm -f src/*.o prog\n' > Makefile
  make -s clean; make -s -j4 && ./prog
  make -q; sleep 1.1; touch src/f7.c
  [[ $(make -n | grep -c 'cc -c') == 1 ]]; make -s; ar rcs lib.a src/f*.o; ranlib lib.a; strip prog; ./prog
}

prog_qemu() {
  need qemu-img mkfs.ext4
  cd "$1"; rm -f ./*.qcow2 ./*.raw
  truncate -s 64M disk.raw; mkfs.ext4 -q -F disk.raw
  qemu-img convert -f raw -O qcow2 disk.raw disk.qcow2
  qemu-img create -q -f qcow2 -b disk.qcow2 -F qcow2 top.qcow2
  qemu-io -f qcow2 -c 'write -P 7 1M 3M' -c 'discard 2M 1M' -c 'flush' -c 'read -P 7 1M 1M' top.qcow2 >/dev/null
  qemu-img check -q top.qcow2; qemu-img snapshot -c one top.qcow2
  qemu-img convert -f qcow2 -O raw top.qcow2 back.raw; qemu-img convert -t none -T none -f qcow2 -O raw top.qcow2 direct.raw
  cmp back.raw direct.raw
}

prog_loop() {
  need mkfs.ext4 losetup
  cd "$1"
  [[ -e disk ]] || { truncate -s 128M disk; mkfs.ext4 -q -F disk; }
  mkdir -p on; mount -o loop disk on
  # shellcheck disable=SC2064
  trap "umount '$1/on'" EXIT
  cp -a /etc/. on/ 2>/dev/null || true; mkdir -p on/x; head -c 9000000 /dev/urandom > on/x/r; sum=$(sha256sum < on/x/r)
  fstrim on; umount on; mount -o loop disk on
  [[ $sum == "$(sha256sum < on/x/r)" ]]
  rm -rf on/*; umount on; trap - EXIT
  e2fsck -fn disk >/dev/null 2>&1
}

prog_overlay() {
  cd "$1"
  mkdir -p lower upper work merged; echo lower > lower/f; mkdir -p lower/d; echo x > lower/d/x; echo gone > lower/gone
  rm -rf work/* upper/*
  mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" merged
  # shellcheck disable=SC2064
  trap "umount '$1/merged'" EXIT
  echo upper > merged/f; rm merged/gone; mv merged/d merged/e; mkdir merged/d; echo new > merged/d/new; ln merged/f merged/l
  chmod 700 merged/e; setfattr -n user.a -v b merged/f 2>/dev/null || true; mknod merged/fifo p
  [[ $(cat merged/f) == upper && ! -e merged/gone && $(ls merged/d) == new && $(cat merged/e/x) == x && $(cat lower/f) == lower ]]
  umount merged; mount -t overlay overlay -o "lowerdir=$1/upper:$1/lower" merged
  [[ $(cat merged/f) == upper && ! -e merged/gone && $(ls merged/d) == new ]]
  umount merged; trap - EXIT
}

prog_dpkg() {
  need dpkg dpkg-deb
  cd "$1"
  rm -rf root pkg; mkdir -p root/var/lib/dpkg/{updates,info} pkg/DEBIAN pkg/usr/bin pkg/etc pkg/usr/share/x; touch root/var/lib/dpkg/{status,available}
  printf 'Package: probe\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\nDescription: probe\n' > pkg/DEBIAN/control
  echo '/etc/probe.conf' > pkg/DEBIAN/conffiles; echo a > pkg/etc/probe.conf; echo b > pkg/usr/bin/probe
  for i in $(seq 300); do echo "$i" > "pkg/usr/share/x/$i"; done; ln pkg/usr/share/x/1 pkg/usr/share/x/hard; ln -s 1 pkg/usr/share/x/soft
  chmod 755 pkg/DEBIAN; dpkg-deb -b pkg probe.deb >/dev/null
  run_dpkg() { dpkg --root="$1/root" --force-not-root --force-script-chrootless "${@:2}" >/dev/null 2>"$1/err" || { cat "$1/err"; return 1; }; }
  run_dpkg "$1" -i probe.deb
  sed -i 's/Version: 1/Version: 2/' pkg/DEBIAN/control; dpkg-deb -b pkg probe.deb >/dev/null; run_dpkg "$1" -i probe.deb
  [[ $(stat -c %h root/usr/share/x/hard) == 2 && $(cat root/usr/share/x/300) == 300 ]]
  run_dpkg "$1" -P probe; [[ ! -e root/usr/share/x ]]
}

prog_debootstrap() {
  need debootstrap
  [[ -e $1/root ]] || debootstrap --variant=minbase bookworm "$1/root" >"$1/log" 2>&1 || { tail -5 "$1/log"; return 1; }
  chroot "$1/root" /bin/sh -c 'dpkg --audit && apt-get --version >/dev/null && dpkg -V | { ! grep missing; }'
}

prog_links() {
  need rsync
  cd "$1"
  [[ -e data ]] || { mkdir -p data; for i in $(seq 500); do echo "$i" > "data/$i"; done; }
  rm -rf snap.*
  rsync -a data/ snap.0/
  # Of another size each time: within a second rsync would take it for the same.
  for n in 1 2 3; do printf "%0$((n * 7 + RANDOM % 7))d\n" 0 > data/7; rsync -a --link-dest="$1/snap.$((n - 1))" data/ "snap.$n/"; done
  [[ $(stat -c %h snap.3/9) == 4 && $(stat -c %h snap.3/7) == 1 ]]
  cp -al snap.3 snap.4; [[ $(stat -c %h snap.4/9) == 5 ]]; rm -rf snap.1; [[ $(stat -c %h snap.4/9) == 4 ]]
}

prog_stress() {
  need stress-ng
  cd "$1"
  # Those that check what they read. Each ends by itself.
  stress-ng --temp-path "$1" --verify --timeout 6 --quiet --log-file "$1/log" \
    --chdir 1 --chmod 1 --dentry 1 --dir 1 --dirdeep 1 --fallocate 1 --filename 1 --flock 1 --fpunch 1 --getdent 1 \
    --hdd 1 --hdd-bytes 32M --iomix 1 --iomix-bytes 32M --locka 1 --lockf 1 --lockofd 1 --mknod 1 --mmap 1 --mmap-file --mmap-bytes 16M \
    --open 1 --readahead 1 --readahead-bytes 16M --rename 1 --revio 1 --revio-bytes 16M --seek 1 --sync-file 1 --sync-file-bytes 16M --utime 1 --xattr 1 --symlink 1 --copy-file 1 \
    || { tail -20 "$1/log"; return 1; }
  ! grep -i fail: "$1/log"
}

# Layers of container images and containers, in overlays on the mount. Nothing here needs control groups.
prog_buildah() {
  need buildah busybox
  # It wants its storage where it was made.
  local d=/run/pando-suite-buildah c n
  mkdir -p "$d"; mount --bind "$1" "$d"
  # shellcheck disable=SC2064
  trap "umount -R '$d'" EXIT
  build() { buildah --root "$d/storage" --runroot "$d/runroot" --storage-driver overlay "$@"; }
  c=$(build from scratch)
  build copy -q "$c" "$(command -v busybox)" /bin/busybox >/dev/null
  build run --isolation chroot "$c" -- /bin/busybox --install -s /bin
  build run --isolation chroot "$c" -- /bin/sh -ec 'mkdir -p /d/in; for i in 1 2 3 4 5 6 7 8; do echo $i > /d/$i; done; ln /d/1 /d/in/hard; ln -s ../2 /d/in/soft'
  build commit -q --disable-compression "$c" localhost/base >/dev/null; build rm "$c" >/dev/null
  for n in 1 2; do
    c=$(build from localhost/base)
    # What the layer below has: changed, removed, renamed over, with further names.
    [[ $(build run --isolation chroot "$c" -- /bin/sh -ec "
      echo $n >> /d/3; rm /d/4; mv /d/5 /d/6; mv /d/in /d/out; chmod 4711 /d/7; ln /d/8 /d/9; mkfifo /d/p; rm -r /d/out; mkdir /d/out
      cat /d/3 /d/6 /d/1; ls /d/out; ls /d" | tr '\n' ' ') == "3 $n 5 1 1 2 3 6 7 8 9 out p " ]]
    build commit -q --disable-compression "$c" "localhost/next$n" >/dev/null; build rm "$c" >/dev/null
    c=$(build from "localhost/next$n")
    [[ $(build run --isolation chroot "$c" -- /bin/sh -ec 'cat /d/6; ls /d/4 2>/dev/null || stat -c "%a %h" /d/7 /d/9' | tr '\n' ' ') == "5 4711 1 644 2 " ]]
    build rm "$c" >/dev/null
  done
  build rmi -a -f >/dev/null
}

# The classic pjdfstest, built, in the directory PJDFSTEST. What fails are the link counts of directories, which nothing
# counts here (docs/posix.md).
prog_pjdfstest() {
  need prove
  [[ -x ${PJDFSTEST:-}/pjdfstest ]] || { echo "skipped: PJDFSTEST names no built pjdfstest"; exit 77; }
  mkdir -p "$1/run"; chmod 755 "$1/run"; cd "$1/run"
  prove -j 4 -rQ "$PJDFSTEST/tests" > "$1/log" 2>&1 || true
  grep -q 'Tests=[0-9]\{4\}' "$1/log"
  local failed; failed=$(sed -n "s|^$PJDFSTEST/tests/\\([^ ]*\\) .*Failed: \\([0-9]*\\))|\\1 \\2|p" "$1/log")
  [[ $failed == "rename/24.t 4" ]] || { cat "$1/log"; return 1; }
}

# The one in Rust: PJDFSTEST_RS names the program. The same fails.
prog_pjdfstestrs() {
  [[ -x ${PJDFSTEST_RS:-} ]] || { echo "skipped: PJDFSTEST_RS names no program"; exit 77; }
  printf '[features]\nposix_fallocate = {}\nrename_ctime = {}\nutimensat = {}\nutime_now = {}\nstat_st_birthtime = {}\n
[settings]\nnaptime = 0.01\nallow_remount = false\n[dummy_auth]\nentries = [["nobody", "nogroup"], ["daemon", "daemon"]]\n' > "$1/toml"
  mkdir -p "$1/run"; chmod 777 "$1/run"; cd "$1/run"
  "$PJDFSTEST_RS" -c "$1/toml" -p "$1/run" > "$1/log" 2>&1 || true
  grep -aq '^Summary: 1 failed, .* [0-9]\{3\} passed' "$1/log" && grep -aq 'updates_link_parent *FAILED$' "$1/log" || { tail -3 "$1/log"; return 1; }
}

# fsx and fsstress of a built xfstests in the directory XFSTESTS, XFSTESTS_OPS (a million) operations together.
prog_xfstests() {
  local x=${XFSTESTS:-}/ltp
  [[ -x $x/fsx && -x $x/fsstress ]] || { echo "skipped: XFSTESTS names no xfstests with fsx and fsstress built"; exit 77; }
  local pids=() seed=$RANDOM each=$((${XFSTESTS_OPS:-1000000} / 7))
  echo "seed $seed"
  "$x/fsx" -N "$each" -S "$seed" -q "$1/fsx1" >"$1/fsx1.log" 2>&1 & pids+=($!)
  "$x/fsx" -N "$each" -S "$((seed + 1))" -q -l 2000000 -o 200000 "$1/fsx2" >"$1/fsx2.log" 2>&1 & pids+=($!)
  "$x/fsx" -N "$each" -S "$((seed + 2))" -q -Z -r 512 -w 512 "$1/fsx3" >"$1/fsx3.log" 2>&1 & pids+=($!)
  "$x/fsstress" -d "$1/stress" -n "$each" -p 4 -s "$seed" >"$1/fsstress.log" 2>&1 & pids+=($!)
  for pid in "${pids[@]}"; do wait "$pid" || { tail -n 20 "$1"/fs*.log; return 1; }; done
}

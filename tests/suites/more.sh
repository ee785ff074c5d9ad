# More programs that people run, as programs.sh has them: databases, backups, servers, editors, archives.
# shellcheck shell=bash

# Jobs of fio whose blocks say what they are: each engine writes and checks, then all are read again. An engine that
# the kernel does not let in is left out.
prog_fio() {
  need fio
  cd "$1"
  local engine extra
  for engine in sync pvsync2 psync vsync mmap libaio posixaio io_uring; do
    for extra in "" --direct=1; do
      [[ $engine == mmap && $extra ]] && continue
      fio --enghelp="$engine" >/dev/null 2>&1 || continue
      rm -f job.*
      fio --name=job --directory="$1" --ioengine="$engine" $extra --rw=randrw --bsrange=4k-64k \
        --bs_unaligned="$([[ $extra ]] && echo 0 || echo 1)" --size=6M --numjobs=2 --iodepth=8 --fsync=50 \
        --verify=crc32c --verify_fatal=1 --verify_backlog=64 --do_verify=1 --minimal >log 2>&1 && continue
      grep -qi 'not permitted\|not loadable\|Function not implemented' log && continue
      echo "$engine $extra:"; tail -20 log; return 1
    done
  done
  # Preallocated and written; then what is there is only read.
  for extra in --fallocate=posix --verify_only; do
    fio --name=whole --directory="$1" --ioengine=psync --rw=write --bs=16k --size=8M --verify=md5 --minimal "$extra" \
      >log 2>&1 || { tail -20 log; return 1; }
  done
}

prog_bonnie() {
  need bonnie++
  cd "$1"
  bonnie++ -d "$1" -u root -s 16M -r 8 -n 1:20000:16:4 -b -q > out 2>log || { tail -5 log; return 1; }
  grep -q ^1.9 out
}

# Appended to and dumped while it is killed: what was answered for is there.
prog_redis() {
  need redis-server redis-cli
  local n before
  pid="" socket=$(mktemp -u)
  trap '[[ -z $pid ]] || kill -9 "$pid"' EXIT
  cli() { redis-cli -s "$socket" "$@" 2>/dev/null; }
  begin_redis() {
    redis-server --port 0 --unixsocket "$socket" --dir "$1" --appendonly yes --appendfsync always \
      --save 60 1000 --auto-aof-rewrite-min-size 100kb --daemonize no > "$1/log" 2>&1 & pid=$!
    for n in $(seq 300); do [[ $(cli ping) == PONG ]] && return; sleep 0.1; done
    tail -5 "$1/log"; return 1
  }
  begin_redis "$1"
  before=$(cli get n); before=${before:-0}
  for n in $(seq 20); do
    for k in $(seq 50); do
      echo "set key:$((RANDOM % 500)) $n$(printf '%0300d' "$k")"; echo "incr n"
    done | cli >/dev/null
    ((n == 8)) && cli bgrewriteaof >/dev/null
    ((n == 14)) && cli bgsave >/dev/null
  done
  cli debug digest > "$1/digest" || true; n=$(cli get n)
  [[ $n == $((before + 1000)) ]]
  kill -9 "$pid"; wait "$pid" 2>/dev/null || true
  begin_redis "$1"
  [[ $(cli get n) == $((before + 1000)) && $(cli debug digest) == $(cat "$1/digest") ]]
  cli save >/dev/null; cli shutdown nosave >/dev/null || true
  wait "$pid" 2>/dev/null || true; pid=""
  redis-check-rdb "$1/dump.rdb" >/dev/null
  local manifest; manifest=$(ls "$1"/appendonlydir/*.manifest)
  redis-check-aof "$manifest" >/dev/null
}

prog_mariadb() {
  need mariadbd mariadb-install-db mariadb
  local data=$1/data n before
  pid="" run=$(mktemp -d); chmod 777 "$run"
  trap '[[ -z $pid ]] || kill -9 "$pid"; rm -rf "$run"' EXIT
  if [[ ! -e $data ]]; then
    mariadb-install-db --no-defaults --user=mysql --datadir="$data" --auth-root-authentication-method=normal \
      > "$1/install" 2>&1
  fi
  admin() { mariadb-admin --no-defaults -S "$run/s" "$@"; }
  begin_mariadb() {
    mariadbd --no-defaults --user=mysql --datadir="$data" --socket="$run/s" --pid-file="$run/pid" --skip-networking \
      --innodb-buffer-pool-size=32M --innodb-log-file-size=8M --innodb-flush-method="$1" > "$run/log" 2>&1 & pid=$!
    for n in $(seq 600); do admin ping >/dev/null 2>&1 && return; sleep 0.1; done
    tail -5 "$run/log"; return 1
  }
  sql() { mariadb --no-defaults -S "$run/s" -N -e "$@" d; }
  begin_mariadb O_DIRECT
  admin create d >/dev/null 2>&1 || true
  sql 'create table if not exists d.t(i int auto_increment primary key, s text) engine=innodb;
    create table if not exists d.a(i int auto_increment primary key, s text) engine=aria'
  before=$(sql 'select count(*) from d.t')
  for n in $(seq 20); do
    sql "insert into d.t(s) select repeat(md5(rand()), 40) from seq_1_to_50;
      insert into d.a(s) select md5(rand()) from seq_1_to_20" >/dev/null
  done
  kill -9 "$pid"; wait "$pid" 2>/dev/null || true
  begin_mariadb fsync
  [[ $(sql 'select count(*) from d.t') == $((before + 1000)) ]]
  sql 'check table d.t, d.a extended' > "$run/check"; ! grep -v 'status.*OK' "$run/check"
  sql 'alter table d.t force; optimize table d.t' >/dev/null
  sql 'drop table if exists d.c; create table d.c select * from d.t'
  [[ $(sql 'select count(*) from d.c') == $((before + 1000)) ]]
  admin shutdown; wait "$pid" || true; pid=""
}

# What comes back is what went in, by name, kind, mode, owner, time, attribute and content.
prog_backups() {
  need borg restic setfacl
  [[ -e $1/tree ]] || a_tree "$1/tree"
  echo "$RANDOM" > "$1/tree/src/f9"
  tree_of "$1/tree" > "$1/wanted"
  export BORG_BASE_DIR=$1/borg.home BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes
  export BORG_RELOCATED_REPO_ACCESS_IS_OK=yes
  export RESTIC_PASSWORD=x RESTIC_CACHE_DIR=$1/restic.cache
  [[ -e $1/borg ]] || borg init -e none "$1/borg"
  [[ -e $1/restic ]] || restic init -q -r "$1/restic"
  rm -rf "$1"/back.*; mkdir "$1/back.borg"
  local name=a$RANDOM$RANDOM
  (cd "$1/tree" && borg create --sparse "$1/borg::$name" . && restic backup -q -r "$1/restic" .)
  (cd "$1/back.borg" && borg extract --sparse "$1/borg::$name")
  borg check --verify-data "$1/borg"; borg compact "$1/borg"
  restic restore -q latest -r "$1/restic" --target "$1/back.restic"
  restic check -q --read-data -r "$1/restic"
  chmod 755 "$1/back.restic"
  # Neither keeps the time of the directory `.` itself.
  for name in borg restic; do
    tree_of "$1/back.$name" | sed 1d | diff <(sed 1d "$1/wanted") - > "$1/diff" ||
      { echo "$name:"; head -20 "$1/diff"; return 1; }
  done
}

prog_hg() {
  need hg
  cd "$1"
  export HGUSER=a HGRCPATH=$1/rc; echo > rc
  [[ -e repo ]] || hg init repo
  cd repo
  for i in $(seq 100); do echo "$i $RANDOM" > "f$i"; done; ln -sf f1 link; chmod +x f2
  hg addremove -q && hg commit -q -m one
  hg mv -q f3 "g$RANDOM"; hg commit -q -m two; echo x >> f4; hg commit -q -m three
  hg update -q '.^'; echo y >> f5; hg commit -q -m four
  hg merge -q; hg commit -q -m merged
  hg verify -q; [[ -z $(hg status) && $(readlink link) == f1 && -x f2 ]]
  # With hard links to what was there, which must not change with it.
  rm -rf ../copy; hg clone -q . ../copy; cd ../copy; echo z >> f6; hg commit -q -m five; hg verify -q
  cd ../repo; hg verify -q; echo z >> f7; hg commit -q -m gone; hg strip -q --config extensions.strip= tip
  hg verify -q; [[ -z $(hg status) ]]
}

prog_svn() {
  need svn svnadmin
  cd "$1"
  [[ -e repo ]] || svnadmin create repo
  rm -rf work; svn -q checkout "file://$1/repo" work; cd work
  for i in $(seq 30); do echo "$RANDOM" > "f$i"; done
  svn -q add --force .; svn -q commit -m one; svn -q mv f1 "g$RANDOM"; svn -q commit -m two; svn -q update
  [[ -z $(svn status) ]]; svnadmin -q verify "$1/repo"; svnadmin -q pack "$1/repo"
  rm -rf ../hot; svnadmin -q hotcopy "$1/repo" "$1/hot"; svnadmin -q verify "$1/hot"
}

# Saved with backups, by renaming and by copying; owner, mode, links and attributes stay where they should.
prog_editors() {
  need vim emacs
  cd "$1"
  local way
  for way in yes no auto; do
    rm -f note hard; echo first > note; ln note hard; chmod 640 note; chown 1001:1002 note
    vim -es -u NONE -N -c "set backup writebackup backupskip= backupcopy=$way swapfile undofile" \
      -c 's/first/second/' -c 'wq' note </dev/null
    [[ $(cat note) == second && $(cat note~) == first && $(stat -c '%a %u:%g' note) == '640 1001:1002' ]]
    [[ $way == no && $(cat hard) == first || $way != no && $(cat hard) == second ]]
    [[ -e .note.un~ && ! -e .note.swp ]]
  done
  for way in t nil; do
    rm -f note* hard; echo first > note; ln note hard; chmod 640 note
    emacs -Q --batch --eval "(setq backup-by-copying $way backup-enable-predicate (lambda (f) t)
      make-backup-files t version-control t create-lockfiles t)" note \
      --eval '(progn (goto-char (point-min)) (insert "x") (save-buffer))' >/dev/null 2>&1
    [[ $(cat note) == xfirst && $(cat 'note.~1~') == first && $(stat -c %a note) == 640 ]]
    [[ $way == t && $(cat hard) == xfirst || $way == nil && $(cat hard) == first ]]
  done
  sed -i s/first/sed/ note; perl -pi.bak -e s/sed/perl/ note; [[ $(cat note note.bak | tr '\n' ' ') == 'xperl xsed ' ]]
}

# Who watches is told; who has what open is found.
prog_watchers() {
  need inotifywait lsof fuser
  cd "$1"
  rm -rf w; mkdir -p w/d; : > events
  local pid event
  inotifywait -m -r --format '%e %f' -o events w 2>ready & pid=$!
  # shellcheck disable=SC2064
  trap "kill $pid" EXIT
  until grep -q established ready; do sleep 0.1; done
  echo a > w/f; echo b >> w/f; cat w/f >/dev/null; mv w/f w/d/g; chmod 600 w/d/g; ln w/d/g w/h; rm w/h
  mkdir w/e; rmdir w/e; truncate -s 1 w/d/g; touch w/d/g; : > w/last
  for _ in $(seq 200); do grep -q 'CREATE last' events && break; sleep 0.1; done
  kill "$pid"; trap - EXIT; wait "$pid" 2>/dev/null || true
  for event in 'CREATE f' 'MODIFY f' 'CLOSE_WRITE,CLOSE f' 'ACCESS f' 'MOVED_FROM f' 'MOVED_TO g' 'ATTRIB g' \
    'CREATE h' 'DELETE h' 'CREATE,ISDIR e' 'DELETE,ISDIR e' 'MODIFY g'; do
    grep -qx "$event" events || { echo "not told: $event"; cat events; return 1; }
  done
  exec 7>> w/open
  local me=$BASHPID; lsof -t w/open 2>/dev/null | grep -qx "$me"
  fuser -s w/open 2>/dev/null; fuser -sm w/open 2>/dev/null; flock -n 7
  exec 7>&-
  ! fuser -s w/open
}

prog_archives() {
  need tar cpio 7z zip unzip mksquashfs unsquashfs setfacl rsync
  [[ -e $1/tree ]] || a_tree "$1/tree"
  cd "$1"
  tree_of "$1/tree" > wanted
  # Without what these formats lack: fractions of seconds, attributes, access lists.
  plain() {
    (cd "$1" && find . -type f -printf '%P %m %s %Ts ' -exec sha256sum -b {} \; | sed 's| \*.*||' | sort
     find . -type l -printf '%P %l\n' | sort)
  }
  plain "$1/tree" > plain.wanted
  rm -rf out.*; mkdir out.sparse out.cpio out.zip out.7z out.inc
  tar -C tree --sparse --format=pax --xattrs --xattrs-include='*' --acls -cf sparse.tar .
  (($(stat -c %s sparse.tar) < 8000000))
  tar -C out.sparse --xattrs --xattrs-include='*' --acls -xpf sparse.tar
  tree_of "$1/out.sparse" | sed 's/\.[0-9]* / /' | diff <(sed 's/\.[0-9]* / /' wanted) -
  (($(stat -c %b out.sparse/src/sparse) < 2000))
  (cd tree && find . -print0 | cpio -0o -H newc --quiet) > a.cpio; (cd out.cpio && cpio -idm --quiet < ../a.cpio)
  plain "$1/out.cpio" | diff plain.wanted -
  rm -f a.zip a.7z; (cd tree && zip -qry ../a.zip src empty link dangling); unzip -qK a.zip -d out.zip
  plain "$1/out.zip" | cut -d' ' -f1-3,5 | diff <(cut -d' ' -f1-3,5 plain.wanted) -
  (cd tree && 7z a -snl -bd -y ../a.7z src >/dev/null); 7z x -bd -y -oout.7z a.7z >/dev/null
  diff -r tree/src out.7z/src
  mksquashfs tree a.squash -noappend -quiet -no-progress >/dev/null 2>&1
  unsquashfs -quiet -no-progress -d out.squash a.squash >/dev/null
  plain "$1/out.squash" | diff plain.wanted -
  # Changed since the last time: incremental by inode numbers and times.
  rm -f snar; tar -C tree --listed-incremental="$1/snar" -cf 0.tar .; sleep 1.1; echo new >> tree/src/f7
  tar -C tree --listed-incremental="$1/snar" -cvf 1.tar . | grep -v '/$' | sort > changed
  [[ $(tr '\n' ' ' < changed) == './src/deep/er/link7 ./src/f7 ' ]]
  find tree/src/f7 -exec touch -d '2003-04-05 06:07:08.091011121' {} +
  # In place, appended and delta.
  head -c 4000000 /dev/urandom > big; head -c 1500000 big > part; rsync --append-verify big part; cmp big part
  printf x | dd of=big bs=1 seek=2000000 conv=notrunc status=none
  rsync -I --inplace --no-whole-file big part; cmp big part
  rsync -I --sparse tree/src/sparse part; cmp tree/src/sparse part
}

prog_ninja() {
  need meson ninja ccache cc
  cd "$1"
  export CCACHE_DIR=$1/ccache CCACHE_HARDLINK=1 CCACHE_NOCOMPRESS=1
  mkdir -p src
  for i in $(seq 30); do printf 'int f%d(int x) { return x + %d; }\n' "$i" "$i" > "src/f$i.c"; done
  { for i in $(seq 30); do echo "int f$i(int);"; done; echo 'int main(void) { int x = 0;'
    for i in $(seq 30); do echo "x = f$i(x);"; done; echo 'return x == 465 ? 0 : 1; }'; } > src/main.c
  { echo "project('p', 'c')"; echo "executable('p', 'src/main.c', $(seq -f "'src/f%g.c'" -s, 30))"; } > meson.build
  rm -rf out; CC="ccache cc" meson setup out >/dev/null; ninja -C out >/dev/null; out/p
  [[ $(ninja -C out | tail -1) == *"no work to do"* ]]
  sleep 1.1; touch src/f7.c; [[ $(ninja -C out -n | grep -c Compiling) == 1 ]]; ninja -C out >/dev/null
  rm -rf out; CC="ccache cc" meson setup out >/dev/null; ninja -C out >/dev/null; out/p
  ccache -s -v | grep -qi 'hits'
}

# By the protocol alone: a share on the mount, seen with smbclient.
prog_samba() {
  need smbd smbclient
  cd "$1"
  mkdir -p share state; chmod 777 share
  local port=$((20000 + RANDOM % 20000))
  { printf '[global]\nsmb ports = %s\nbind interfaces only = yes\ninterfaces = lo\n' "$port"
    printf 'map to guest = Bad User\nguest account = root\nstore dos attributes = yes\nea support = yes\n'
    printf 'disable spoolss = yes\nlog file = %s/log\n' "$1"
    printf "%s directory = $1/state\n" state cache lock pid
    printf "%s dir = $1/state\n" private ncalrpc
    printf '[s]\npath = %s/share\nguest ok = yes\nread only = no\nforce user = root\n' "$1"; } > conf
  smbd -s conf -F >smbd.out 2>&1 & local pid=$!
  # shellcheck disable=SC2064
  trap "kill $pid" EXIT
  smb() { smbclient -N -p "$port" //127.0.0.1/s -c "$1"; }
  for n in $(seq 100); do smb ls >/dev/null 2>&1 && break; sleep 0.2; done
  head -c 3000000 /dev/urandom > local
  rm -rf share/*
  smb "put local big; mkdir d; put local d/other; rename d/other d/Third; get big back; ls; allinfo big;
    setmode big +h; del d/third; rmdir d" > out || { cat out; return 1; }
  cmp local share/big; cmp local back
  [[ ! -e share/d ]]; getfattr -n user.DOSATTRIB share/big >/dev/null 2>&1
  kill "$pid"; trap - EXIT; wait "$pid" 2>/dev/null || true
}

# Rules that make, keep, age and remove; logs that are rotated.
prog_system() {
  need systemd-tmpfiles logrotate
  cd "$1"
  rm -rf root logs; mkdir -p root/etc root/old/sub logs
  cp /etc/passwd /etc/group root/etc/
  { printf 'd /new 1777 root root -\nf /new/file 0640 root root - hello\nL /new/link - - - - file\n'
    printf 'p /new/fifo 0600\nD /old 0755 - - 1d\nr /gone\nR /tree\na+ /new/file - - - - u:1:r\n'
    printf 't /new/file - - - - user.x=y\nC /copy - - - - /etc\n'; } > rules
  touch root/gone root/old/fresh; mkdir -p root/tree/a/b; touch root/tree/a/b/c
  touch -d '9 days ago' root/old/sub/stale
  systemd-tmpfiles --root="$1/root" --create --remove "$1/rules"
  [[ $(stat -c %a root/new) == 1777 && $(cat root/new/file) == hello && -p root/new/fifo ]]
  [[ ! -e root/gone && ! -e root/tree && $(getfattr --only-values -n user.x root/new/file) == y ]]
  getfacl -n root/new/file | grep -q '^user:1:r'
  { printf '%s/logs/*.log {\nrotate 3\ncompress\ndelaycompress\nmissingok\ncreate 640 root adm\nsu root root\n}\n' "$1"
    printf '%s/logs/*.txt {\nrotate 2\ncopytruncate\nsu root root\n}\n' "$1"; } > conf
  chmod 644 conf
  local n
  for n in 1 2 3 4; do
    echo "line $n" >> logs/a.log; echo "line $n" >> logs/b.txt; logrotate -f -s "$1/state" conf
  done
  [[ $(zcat logs/a.log.2.gz) == 'line 3' && $(cat logs/a.log.1) == 'line 4' && $(stat -c %a logs/a.log) == 640 ]]
  [[ ! -s logs/b.txt && $(cat logs/b.txt.1) == 'line 4' && $(ls logs | wc -l) == 7 ]]
}

prog_annex() {
  need git-annex git
  cd "$1"
  export HOME=$1/home GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
  mkdir -p home
  if [[ ! -e repo ]]; then git init -q repo; (cd repo && git annex init -q one); fi
  cd repo
  head -c 200000 /dev/urandom > "f$RANDOM$RANDOM"; git annex add -q .; git commit -q -m x; git annex fsck -q
  chmod -R u+w ../copy 2>/dev/null || true; rm -rf ../copy; git clone -q . ../copy; cd ../copy
  git annex init -q two; git annex get -q .; git annex fsck -q; git annex drop -q .
}

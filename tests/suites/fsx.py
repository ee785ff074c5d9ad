#!/usr/bin/env python3
"""Random operations on one file beside a model of it in memory, as fsx does it; with clones of the file in between.

    fsx.py DIR PROGRAM [--ops N] [--seed N] [--name NAME]

Reads, writes (buffered, direct, synchronous), mappings read and written, truncates, holes punched, ranges zeroed and
allocated, ranges copied inside the file and from a clone of it, clones by PROGRAM, fsync, closing and opening, pages dropped.
Each read is compared; at the end the whole file, and all clones that are still there. A difference ends it with the seed, the
number of the operation and the last ones.
"""

import argparse, collections, ctypes, mmap, os, random, subprocess, sys

libc = ctypes.CDLL(None, use_errno=True)
KEEP, PUNCH, ZERO = 1, 2, 16
LARGEST = 1 << 20


class Mismatch(Exception):
    pass


def main():
    args = argparse.ArgumentParser()
    args.add_argument("dir"), args.add_argument("program")
    args.add_argument("--ops", type=int, default=20000), args.add_argument("--seed", type=int, default=None)
    args.add_argument("--name", default="fsx")
    a = args.parse_args()
    seed = a.seed if a.seed is not None else random.randrange(1 << 32)
    rnd = random.Random(seed)
    path = os.path.join(a.dir, a.name)
    done = collections.deque(maxlen=30)
    counts = collections.Counter()
    model = bytearray()
    clones = {}
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC)

    def same(what, got, wanted, at=0):
        if got != wanted:
            where = next((i for i, (x, y) in enumerate(zip(got, wanted)) if x != y), min(len(got), len(wanted)))
            raise Mismatch(f"{what}: {len(got)} bytes, {len(wanted)} wanted, differ from byte {at + where}")

    def fallocate(mode, at, length):
        if libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(length)) < 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def whole(p):
        with open(p, "rb") as f:
            return f.read()

    def put(at, data):
        if not data:
            return
        if len(model) < at:
            model.extend(bytes(at - len(model)))
        model[at:at + len(data)] = data

    try:
        for op in range(a.ops):
            size = len(model)
            at = rnd.randrange(LARGEST if rnd.random() < 0.2 else max(size, 1))
            length = min(rnd.choice([1, 7, 100, 4096, 5000, 16384, 65536, 200000]) + rnd.randrange(50), LARGEST - at)
            kind = rnd.choices(["read", "write", "append", "mapread", "mapwrite", "truncate", "punch", "zero", "allocate", "copy",
                                "clone", "use", "sync", "reopen", "drop", "size"],
                               [20, 20, 4, 6, 8, 5, 5, 4, 2, 6, 0.3, 0.5, 1, 2, 1, 2])[0]
            done.append(f"{op} {kind} {at} {length} of {size}")
            counts[kind] += 1
            if kind == "read":
                same("read", os.pread(fd, length, at), bytes(model[at:at + length]), at)
            elif kind in ("write", "append"):
                data = rnd.randbytes(length) if rnd.random() < 0.9 else bytes(length)
                at = size if kind == "append" else at
                if at + length > LARGEST:
                    continue
                if rnd.random() < 0.1:
                    flags = rnd.choice([os.O_SYNC, os.O_DSYNC, os.O_DIRECT])
                    other = os.open(path, os.O_WRONLY | flags)
                    os.pwrite(other, data, at)
                    os.close(other)
                else:
                    os.pwrite(fd, data, at)
                put(at, data)
            elif kind in ("mapread", "mapwrite"):
                length = min(length, size - at)
                if length <= 0:
                    continue
                with mmap.mmap(fd, size) as m:
                    if kind == "mapread":
                        same(kind, m[at:at + length], bytes(model[at:at + length]), at)
                    else:
                        data = rnd.randbytes(length)
                        m[at:at + length] = data
                        put(at, data)
                        if rnd.random() < 0.3:
                            m.flush()
            elif kind == "truncate":
                os.ftruncate(fd, at)
                if at < size:
                    del model[at:]
                else:
                    model.extend(bytes(at - size))
            elif kind == "punch":
                fallocate(PUNCH | KEEP, at, length)
                end = min(at + length, size)
                if end > at:
                    model[at:end] = bytes(end - at)
            elif kind == "zero":
                keep = rnd.random() < 0.5
                fallocate(ZERO | (KEEP if keep else 0), at, length)
                put(at, bytes(max(0, min(length, size - at) if keep else length)))
            elif kind == "allocate":
                fallocate(0, at, length)
                if at + length > len(model):
                    model.extend(bytes(at + length - len(model)))
            elif kind == "copy":
                source, data = fd, model
                if clones and rnd.random() < 0.5:
                    name = rnd.choice(sorted(clones))
                    source, data = os.open(name, os.O_RDONLY), clones[name]
                start = rnd.randrange(max(len(data), 1))
                if source == fd and abs(start - at) < length:
                    continue
                try:
                    n = os.copy_file_range(source, fd, length, start, at)
                finally:
                    if source != fd:
                        os.close(source)
                if n > max(0, len(data) - start) or (n == 0 and start < len(data)):
                    raise Mismatch(f"copy: {n} bytes of {len(data) - start}")
                put(at, bytes(data[start:start + n]))
            elif kind == "clone":
                name = f"{path}.clone{rnd.randrange(6)}"
                subprocess.run([a.program, "clone", "--replace", path, name], check=True)
                clones[name] = bytes(model)
            elif kind == "use" and clones:
                # Goes on in the clone; the original becomes a clone.
                name = rnd.choice(sorted(clones))
                os.close(fd)
                os.rename(path, path + ".was")
                os.rename(name, path)
                os.rename(path + ".was", name)
                clones[name], model = bytes(model), bytearray(clones[name])
                fd = os.open(path, os.O_RDWR)
            elif kind == "sync":
                os.fsync(fd)
            elif kind == "reopen":
                os.close(fd)
                fd = os.open(path, os.O_RDWR)
            elif kind == "drop":
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            elif kind == "size" and os.fstat(fd).st_size != size:
                raise Mismatch(f"{os.fstat(fd).st_size} bytes, {size} wanted")
        same("the file", whole(path), bytes(model))
        for name, wanted in clones.items():
            same(name, whole(name), wanted)
    except (Mismatch, OSError) as e:
        print(f"seed {seed}: operation {op}: {e!r}\n  " + "\n  ".join(done))
        sys.exit(1)
    print(f"{a.ops} operations, seed {seed}: " + ", ".join(f"{n} {k}" for k, n in sorted(counts.items())), file=sys.stderr)


main()

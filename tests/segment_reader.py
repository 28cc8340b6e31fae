#!/usr/bin/env python3
"""Reads a store of blocks, written from docs/formats/segment.md alone and sharing no code with the writer.

    tests/segment_reader.py FOLDER        prints a line a block: namespace, key, class, bytes, CRC-32C of all its parts in a row
"""

import os
import re
import struct
import sys

PAGE = 4096
STEM = re.compile(r"([a-z0-9_]{1,15})-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]{16})-([0-9a-f]{8})")

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def sealed(data, magic):
    """`data` is a whole structure of this kind, of version 1."""
    return (len(data) >= 16 and data[:8] == magic and struct.unpack_from("<II", data, 8) == (crc32c(data[12:]), 1))


def identity(stem):
    match = STEM.fullmatch(stem)
    if not match:
        return None
    name, bucket, expiry, writer, number = match.groups()
    return struct.pack("<QII", int(writer, 16), int(number, 16), 0) + \
        name.encode().ljust(16, b"\0") + struct.pack("<QQ", int(bucket, 16), int(expiry, 16))


def table_at(data, offset, which):
    """(kind, begin, end, rows, bytes) of the table there, or None. A row: namespace, key, sequence, offset, bytes, exact."""
    head = data[offset:offset + 112]
    if len(head) < 112 or head[:8] != b"GLYTBL1\n":
        return None
    size, kind, _, begin, end = struct.unpack_from("<QIIQQ", head, 16)
    scopes, rows = struct.unpack_from("<II", head, 96)
    if size != 112 + 88 * scopes + 40 * rows or offset + size > len(data):
        return None
    body = data[offset:offset + size]
    if not sealed(body, b"GLYTBL1\n") or body[48:96] != which:
        return None
    names = []
    for i in range(scopes):
        length, = struct.unpack_from("<I", body, 112 + 88 * i + 16)
        names.append(body[112 + 88 * i + 24:][:length])
    out = []
    for i in range(rows):
        at = 112 + 88 * scopes + 40 * i
        sequence, page, pages, scope, flags = struct.unpack_from("<QIIHH", body, at + 16)
        out.append((names[scope], body[at:at + 16], sequence, page * PAGE, pages * PAGE, flags & 1))
    return kind, begin, end, out, -(-size // PAGE) * PAGE


def record_at(data, offset, which):
    """(row, parts) of the record there, every part verified, or None."""
    head = data[offset:offset + 256]
    if len(head) < 256 or head[:8] != b"GLYBLK1\n":
        return None
    size, parts, payload, sequence = struct.unpack_from("<IIQQ", head, 16)
    if parts > 1024 or size != 256 + 8 * parts:
        return None
    head = data[offset:offset + size]
    if not sealed(head, b"GLYBLK1\n") or head[96:144] != which:
        return None
    flags, length = struct.unpack_from("<II", head, 56)
    at = offset + size
    out = []
    for i in range(parts):
        count, crc = struct.unpack_from("<II", head, 256 + 8 * i)
        part = data[at:at + count]
        if len(part) != count or crc32c(part) != crc:
            return None
        out.append(part)
        at += count
    whole = -(-(size + payload) // PAGE) * PAGE
    if offset + whole > len(data):
        return None
    return (head[144:144 + length], head[64:80], sequence, offset, whole, flags & 1), out


def rows_of(data, journal, which):
    data = data[:len(data) // PAGE * PAGE]
    end = data[-PAGE:]
    if sealed(end, b"GLYEND1\n") and end[16:64] == which:
        offset, _ = struct.unpack_from("<QQ", end, 64)
        footer = table_at(data, offset, which)
        if footer and footer[0] == 2:
            return footer[3]
    rows, told, at = [], [], 0
    while at < len(journal):
        entry = table_at(journal, at, which)
        if entry and entry[0] == 1:
            rows += entry[3]
            told.append(entry[1:3])
            at += entry[4]
        else:
            at += PAGE
    at = PAGE
    while at < len(data):
        inside = [end for begin, end in told if begin <= at < end]
        record = None if inside else record_at(data, at, which)
        if record:
            rows.append(record[0])
        at = inside[0] if inside else at + (record[0][4] if record else PAGE)
    return rows


def purges_of(folder):
    for name in ("purges.a", "purges.b"):
        try:
            with open(os.path.join(folder, name), "rb") as file:
                lines = file.read().rstrip(b"\0")
        except FileNotFoundError:
            continue
        body, crc = lines[:-9], lines[-9:].strip()
        if int(crc, 16) == crc32c(body):
            words = [line.split(b" ") for line in body.split(b"\n")[1:-1]]
            return {bytes.fromhex(space.decode()): int(sequence, 16) for sequence, _, space in words}
    return {}


def read_store(folder):
    """{(namespace, key): (class, parts)} of every block that can be read."""
    purged = purges_of(folder)
    found = {}
    for file in sorted(os.listdir(folder)):
        stem = file.removesuffix(".segment")
        which = identity(stem)
        if stem == file or which is None:
            continue
        with open(os.path.join(folder, file), "rb") as opened:
            data = opened.read()
        journal = b""
        if os.path.exists(os.path.join(folder, stem + ".journal")):
            with open(os.path.join(folder, stem + ".journal"), "rb") as opened:
                journal = opened.read()
        for space, key, sequence, offset, size, _ in rows_of(data, journal, which):
            record = record_at(data, offset, which) if offset + size <= len(data) else None
            if sequence <= purged.get(space, 0) or not record or record[0][:2] != (space, key):
                continue
            if (space, key) not in found or found[space, key][0] < sequence:
                found[space, key] = (sequence, stem.split("-")[0], record[1])
    return {name: (retention, parts) for name, (_, retention, parts) in found.items()}


def main():
    for (space, key), (retention, parts) in sorted(read_store(sys.argv[1]).items()):
        payload = b"".join(parts)
        print(space.decode(), key.hex(), retention, len(payload), f"{crc32c(payload):08x}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes the images of this folder and expected.txt: what Pillow 13.0.0 makes of each.

Each line of expected.txt: `decode FILE W H HEX` (convert("RGB")), `resize FILE W H HEX` (bicubic) or
`fit FILE W H HEX` (ImageOps.pad with grey 127); HEX are the RGB bytes, rows from the top. Needs Pillow and numpy.
"""

import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

HERE = pathlib.Path(__file__).parent
W, H = 21, 13


def picture(channels, depth_max=255):
    """Gradients with noise, so that no two pixels agree by luck."""
    rng = np.random.default_rng(7)
    y, x = np.mgrid[0:H, 0:W]
    planes = [x * 9 + y, 250 - x * 4 - y * 7, (x // 4 + y // 3) % 2 * 180 + y, 255 - y * 19][:channels]
    noise = rng.integers(0, 9, (H, W, channels))
    a = np.clip(np.stack(planes, -1) + noise, 0, 255)
    return (a * depth_max // 255).astype(np.uint16 if depth_max > 255 else np.uint8)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pack(rows, depth):
    """Scan lines without filter."""
    out = b""
    for row in rows.reshape(rows.shape[0], -1):
        if depth == 16:
            line = row.astype(">u2").tobytes()
        elif depth == 8:
            line = row.astype(np.uint8).tobytes()
        else:
            bits = np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - depth:].reshape(-1)
            line = np.packbits(bits).tobytes()
        out += b"\0" + line
    return out


def png(name, pixels, color, depth, extra=(), interlaced=False):
    a = pixels if pixels.ndim == 3 else pixels[..., None]
    data = b""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for x, y, dx, dy in passes if interlaced else [(0, 0, 1, 1)]:
        part = a[y::dy, x::dx]
        if part.size:
            data += pack(part, depth)
    header = struct.pack(">IIBBBBB", a.shape[1], a.shape[0], depth, color, 0, 0, int(interlaced))
    body = b"".join(chunk(k, d) for k, d in extra)
    (HERE / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body +
                              chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def good():
    rgb, rgba, grey = picture(3), picture(4), picture(1)
    png("rgb.png", rgb, 2, 8)
    png("rgb_key.png", rgb, 2, 8, [(b"tRNS", struct.pack(">HHH", *map(int, rgb[3, 3])))])
    png("rgb_gamma.png", rgb, 2, 8, [(b"gAMA", struct.pack(">I", 100000))])
    png("rgba.png", rgba, 6, 8)
    png("grey.png", grey, 0, 8)
    png("grey_alpha.png", picture(2), 4, 8)
    png("grey1.png", grey >> 7, 0, 1)
    png("grey2.png", grey >> 6, 0, 2)
    png("grey4.png", grey >> 4, 0, 4)
    png("grey16.png", picture(1, 700), 0, 16)
    png("grey_alpha16.png", picture(2, 65535), 4, 16)
    png("rgb16.png", picture(3, 65535), 2, 16)
    png("rgba16.png", picture(4, 65535), 6, 16)
    palette = np.random.default_rng(3).integers(0, 256, (16, 3), dtype=np.uint8).tobytes()
    png("palette4.png", grey >> 4, 3, 4, [(b"PLTE", palette), (b"tRNS", bytes(range(0, 240, 16)))])
    png("interlaced.png", rgb, 2, 8, interlaced=True)
    im = Image.fromarray(rgb)
    im.save(HERE / "rgb.jpg", quality=88)
    im.save(HERE / "rgb444.jpg", quality=88, subsampling=0)
    im.save(HERE / "progressive.jpg", quality=88, progressive=True)
    Image.fromarray(grey[..., 0]).save(HERE / "grey.jpg", quality=88)
    Image.fromarray(rgba, "CMYK").save(HERE / "cmyk.jpg", quality=88)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    im.save(HERE / "turned.jpg", quality=88, exif=exif)
    im.save(HERE / "lossy.webp", quality=80)
    im.save(HERE / "lossless.webp", lossless=True)
    alpha = Image.fromarray(rgba)
    alpha.save(HERE / "lossy_alpha.webp", quality=80)
    alpha.save(HERE / "lossless_alpha.webp", lossless=True, exact=True)


def bad():
    rgb = picture(3)
    frames = [Image.fromarray(rgb), Image.fromarray(255 - rgb)]
    frames[0].save(HERE / "animated.webp.bad", format="WEBP", save_all=True, append_images=frames[1:])
    frames[0].save(HERE / "animated.png.bad", format="PNG", save_all=True, append_images=frames[1:])


def expected():
    lines = []
    names = sorted(p.name for p in HERE.iterdir() if p.suffix in (".png", ".jpg", ".webp"))
    for name in names:
        im = Image.open(HERE / name).convert("RGB")
        lines.append(f"decode {name} {im.width} {im.height} {im.tobytes().hex()}")
    im = Image.open(HERE / "rgb.png").convert("RGB")
    for w, h in [(8, 5), (7, 13), (21, 4), (21, 13), (40, 30), (30, 13), (1, 1), (2, 29)]:
        lines.append(f"resize rgb.png {w} {h} {im.resize((w, h)).tobytes().hex()}")
    for w, h in [(14, 14), (28, 14), (42, 42), (21, 13), (84, 14), (16, 8), (28, 24)]:
        lines.append(f"fit rgb.png {w} {h} {ImageOps.pad(im, (w, h), color=(127, 127, 127)).tobytes().hex()}")
    (HERE / "expected.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    good()
    bad()
    expected()

"""Extracts the PTX from a module that a program loads: PTX text, or a fat binary by nvcc that contains PTX.

The format of fat binaries is undocumented; this description comes from files that nvcc 13.0 wrote. A container has
one or more entries, each for one architecture:

    container   u32 magic, u16 version, u16 bytes of this header, u64 bytes of all entries
    entry       u16 kind (1 is PTX, 2 a cubin), u16 version, u32 bytes of this header, u64 bytes of the content,
                u32 bytes of it when compressed, u32, u16 minor and u16 major version, u32 architecture, u32, u32,
                u64 flags, u64, u64 bytes when not compressed; then names and options, then the content

``nvcc --compress-mode`` chooses the compression, and a flag records it: LZ4 (speed), zstd (balance, the default, and
size), or none.

CuTe DSL assembles PTX in the program itself and loads a cubin. If an environment variable asks for it, CuTe DSL also
writes the PTX to a folder, where `ptx_of_cubin` finds it by the names of its kernels.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTAINER_MAGIC = 0xBA55ED50
ELF_MAGIC = b"\x7fELF"
MAX_PTX_BYTES = 1 << 28
"""The largest decompressed module."""
_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_PTX = 1
_LZ4, _ZSTD = 0x2000, 0x8000
_CODE_SECTION = re.compile(rb"\.text\.([\w$]+)\0")
_KERNEL = re.compile(r"\.entry\s+([\w$]+)")
_TARGET = re.compile(r"^\s*\.target\s+sm_(\d+)([af]?)", re.MULTILINE)


class ImageError(Exception):
    """The emulated GPU cannot run this module; the message says why, and how to fix it."""


@dataclass(frozen=True)
class PtxImage:
    """One module as text, for the architecture in its ``.target``: 90 and "a" for sm_90a."""

    text: str
    architecture: int
    suffix: str

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Returns whether a GPU can run it (PTX ISA 11.1.2): with "a" only the GPU that it names, with "f" those of its
        family.
        """
        gpu = capability[0] * 10 + capability[1]
        if self.suffix == "a":
            return self.architecture == gpu
        if self.suffix == "f":
            return self.architecture <= gpu and self.architecture // 10 == gpu // 10
        return self.architecture <= gpu


def ptx_of(image: bytes, capability: tuple[int, int]) -> str:
    """Returns the PTX for a GPU of this compute capability; if several fit, the closest one.

    ``image`` is PTX text (with or without a null character at its end) or a fat binary; a cubin is refused.

    Raises ImageError.
    """
    images = list(_images(image))
    fitting = [one for one in images if one.runs_on(capability)]
    if fitting:
        return max(fitting, key=lambda one: (one.architecture, one.suffix)).text
    gpu = f"{capability[0]}{capability[1]}"
    how = f"build with PTX: nvcc -gencode arch=compute_{gpu}a,code=compute_{gpu}a"
    if images:
        found = ", ".join(f"sm_{one.architecture}{one.suffix}" for one in images)
        raise ImageError(f"the module has PTX for {found}, and the emulated GPU is sm_{gpu}; {how}")
    raise ImageError(f"the module has machine code and no PTX, which the emulated GPU cannot run; {how}")


def ptx_of_cubin(image: bytes, folder: Path | None) -> str | None:
    """Returns the newest PTX in the folder that has all kernels of a cubin, alone or in a fat binary, or None."""
    wanted = {name.decode() for name in _CODE_SECTION.findall(image)}
    if folder is None or not wanted:
        return None
    for path in sorted(folder.glob("*.ptx"), key=lambda path: path.stat().st_mtime_ns, reverse=True):
        text = path.read_text(encoding="utf-8", errors="replace").rstrip("\0")
        if wanted <= set(_KERNEL.findall(text)):
            return text
    return None


def stand_in_for_cubin(image: bytes, target: str) -> str | None:
    """Returns PTX with empty kernels of the same names as those of a cubin, or None if it is none or has no kernels.

    A program can ask about these kernels, but not launch them.
    """
    names = dict.fromkeys(_CODE_SECTION.findall(image)) if image.startswith(ELF_MAGIC) else {}
    if not names:
        return None
    kernels = "".join(f".visible .entry {name.decode()}() {{ ret; }}\n" for name in names)
    return f".version 8.7\n.target {target}\n.address_size 64\n{kernels}"


def _images(image: bytes) -> Iterator[PtxImage]:
    if image.startswith(ELF_MAGIC):
        return
    if len(image) >= 4 and struct.unpack_from("<I", image)[0] == CONTAINER_MAGIC:
        for text in _entries(image):
            yield _ptx_image(text)
    else:
        yield _ptx_image(image)


def _ptx_image(data: bytes) -> PtxImage:
    try:
        text = data.split(b"\0", 1)[0].decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    target = _TARGET.search(text)
    if target is None:
        raise ImageError("the module is neither PTX nor a fat binary: no .target in it")
    return PtxImage(text, int(target[1]), target[2])


def _entries(image: bytes) -> Iterator[bytes]:
    """Yields the content of the entries with PTX."""
    _, _, header, nbytes = _CONTAINER.unpack_from(image.ljust(_CONTAINER.size, b"\0"))
    at, end = header, header + nbytes
    if end > len(image):
        raise ImageError(f"the fat binary is cut off: {len(image)} of {end} bytes")
    while at + _ENTRY.size <= end:
        kind, _, header, nbytes, compressed, _, _, _, _, _, _, flags, _, plain = _ENTRY.unpack_from(image, at)
        if header < _ENTRY.size or at + header + nbytes > end or compressed > nbytes:
            raise ImageError(f"the fat binary is damaged: its entry at byte {at} goes beyond its end")
        content = image[at + header : at + header + nbytes]
        if kind == _PTX and flags & (_LZ4 | _ZSTD):
            if plain > MAX_PTX_BYTES:
                raise ImageError(f"the PTX in the fat binary has {plain} bytes; at most {MAX_PTX_BYTES} are read")
            unpack = _unpack_zstd if flags & _ZSTD else _unpack_lz4
            yield unpack(content[:compressed], plain)
        elif kind == _PTX:
            yield content
        at += header + nbytes


def _unpack_zstd(data: bytes, size: int) -> bytes:
    try:
        import zstandard  # only here: few modules need it
    except ImportError:
        raise ImageError(
            "the PTX in the fat binary is compressed by zstd, and the package zstandard is missing: "
            "pip install zstandard, or build with nvcc --compress-mode=none"
        ) from None
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return _of_size(reader.read(size), size)
    except zstandard.ZstdError as error:
        raise ImageError(f"the PTX in the fat binary cannot be decompressed: {error}") from None


def _unpack_lz4(data: bytes, size: int) -> bytes:
    """Decompresses one block of LZ4: literal bytes, then a copy of earlier output, and so on."""
    out = bytearray()
    at = 0
    try:
        while at < len(data):
            token = data[at]
            literals, at = _lz4_length(data, at + 1, token >> 4)
            out += data[at : at + literals]
            at += literals
            if at >= len(data):
                break
            distance = data[at] | data[at + 1] << 8
            length, at = _lz4_length(data, at + 2, token & 15)
            length += 4
            if not 0 < distance <= len(out) or len(out) + length > size:
                raise IndexError
            start = len(out) - distance
            # If the copy overlaps its own output, the piece repeats.
            piece = bytes(out[start : start + length])
            out += (piece * -(-length // len(piece)))[:length]
    except IndexError:
        raise ImageError("the PTX in the fat binary cannot be decompressed: its LZ4 block is damaged") from None
    return _of_size(bytes(out), size)


def _lz4_length(data: bytes, at: int, length: int) -> tuple[int, int]:
    """Returns a length that began with four bits, and the position after it."""
    if length == 15:
        while True:
            more = data[at]
            at += 1
            length += more
            if more != 255:
                break
    return length, at


def _of_size(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ImageError(f"the PTX in the fat binary has {len(data)} bytes, its header says {size}")
    return data

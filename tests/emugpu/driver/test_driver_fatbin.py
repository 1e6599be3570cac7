"""PTX out of what nvcc makes: every way of compression, several architectures, and images that are damaged."""

import re
import shutil
import struct
import subprocess

import pytest

from emugpu.driver.fatbin import CONTAINER_MAGIC, ImageError, ptx_of

SOURCE = "\n".join(
    f'extern "C" __global__ void kernel{i}(int *out) {{ out[threadIdx.x] = {i} * out[threadIdx.x + {i}]; }}'
    for i in range(12)
)
H200, B200 = (9, 0), (10, 0)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")


def nvcc(path, *options):
    """The output of nvcc for SOURCE."""
    source, out = path / "kernels.cu", path / "out"
    source.write_text(SOURCE)
    subprocess.run(["nvcc", *options, "-o", out, source], check=True)
    return out.read_bytes()


def words(ptx):
    """What is left without comments and space, which nvcc takes out of PTX that it puts into fat binaries."""
    return re.sub(r"//.*", "", ptx).split()


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return nvcc(tmp_path_factory.mktemp("ptx"), "-ptx", "-arch=compute_90a").decode()


@needs_nvcc
@pytest.mark.parametrize("mode", ["none", "speed", "balance", "size"])
def test_ptx_of_a_fat_binary(tmp_path, plain, mode):
    code = ["-gencode", "arch=compute_90a,code=compute_90a"]
    image = nvcc(tmp_path, "-fatbin", f"--compress-mode={mode}", *code)
    assert words(ptx_of(image, H200)) == words(plain)
    with pytest.raises(ImageError, match="has PTX for sm_90a, and the emulated GPU is sm_100; build with PTX: nvcc"):
        ptx_of(image, B200)


@pytest.mark.slow
@needs_nvcc
def test_the_best_of_several(tmp_path):
    wanted = [
        "arch=compute_90a,code=compute_90a",
        "arch=compute_100a,code=sm_100a",
        "arch=compute_80,code=[compute_80,sm_80]",
    ]
    image = nvcc(tmp_path, "-fatbin", "-lineinfo", *(part for code in wanted for part in ("-gencode", code)))
    assert ".target sm_90a" in ptx_of(image, H200)
    assert ".target sm_80" in ptx_of(image, B200)


@needs_nvcc
def test_machine_code_alone_is_refused(tmp_path):
    for kind in ("-cubin", "-fatbin"):
        image = nvcc(tmp_path, kind, "-gencode", "arch=compute_90a,code=sm_90a")
        with pytest.raises(
            ImageError, match=r"machine code and no PTX.* nvcc -gencode arch=compute_90a,code=compute_90a"
        ):
            ptx_of(image, H200)


PTX = b".version 8.6\n.target sm_90\n.address_size 64\n"


def container(content, flags=0, compressed=0, plain=0, kind=1):
    content += bytes(-len(content) % 8)
    entry = struct.pack("<HHIQIIHHIIIQQQ", kind, 257, 64, len(content), compressed, 0, 0, 9, 90, 0, 0, flags, 0, plain)
    return struct.pack("<IHHQ", CONTAINER_MAGIC, 1, 16, len(entry + content)) + entry + content


def test_text_and_family_targets():
    assert ptx_of(PTX + b"\0rest", B200) == PTX.decode()
    family = PTX.replace(b"sm_90", b"sm_100f")
    assert ptx_of(family, (10, 3)) == family.decode()
    for capability in (H200, (12, 0)):
        with pytest.raises(ImageError, match="PTX for sm_100f"):
            ptx_of(family, capability)
    with pytest.raises(ImageError, match="neither PTX nor a fat binary"):
        ptx_of(b"\xff\xfe nothing", H200)


def test_lz4_copies_that_overlap_themselves():
    # "ab" and a copy of 9 bytes from 2 back, as the format's description has it.
    text = PTX + b"// " + b"ab" * 5 + b"a\n"
    head = text[: len(PTX) + 5]
    block = bytes([0xF0 | 5, len(head) - 15]) + head + b"\x02\x00" + b"\x10\n"
    image = container(block, flags=0x2000, compressed=len(block), plain=len(text))
    assert ptx_of(image, H200) == text.decode()


DAMAGED = {
    "cut off": (container(PTX)[:-9], "cut off"),
    "no zstd": (container(bytes(16), flags=0x8000, compressed=16, plain=99), "cannot be decompressed"),
    "short zstd": (
        container(b"\x28\xb5\x2f\xfd" + bytes(4), flags=0x8000, compressed=8, plain=99),
        "0 bytes, its header",
    ),
    "far copy": (container(b"\x1fa\x09\x00" + bytes(4), flags=0x2000, compressed=4, plain=99), "damaged"),
    "no length": (container(b"\xf0", flags=0x2000, compressed=1, plain=99), "damaged"),
    "short": (container(b"\x10a", flags=0x2000, compressed=2, plain=99), "1 bytes, its header says 99"),
    "long entry": (container(bytes(8), flags=0x2000, compressed=99), "goes beyond its end"),
    "huge": (container(bytes(8), flags=0x8000, compressed=8, plain=1 << 40), "at most"),
    "no entries": (struct.pack("<I", CONTAINER_MAGIC), "no PTX"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_images(name):
    image, message = DAMAGED[name]
    with pytest.raises(ImageError, match=message):
        ptx_of(image, H200)

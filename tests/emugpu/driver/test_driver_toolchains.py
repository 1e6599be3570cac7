"""What makes compilers hand over PTX: the stand-in for ptxas, the variables that name it, and the driver's linker."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from driver_programs import run

from emugpu.driver.fatbin import ptx_of_cubin
from emugpu.driver.log import judge
from emugpu.driver.toolchains import (
    ASSEMBLER_VARIABLES,
    CACHE_VARIABLES,
    INDUCTOR_VARIABLES,
    assembler,
    toolchain_variables,
    toolkit_variables,
)
from emugpu.errors import UsageProblem

PTX = Path(__file__).parents[2] / "data/cuda/driver_kernels.ptx"


@pytest.mark.parametrize(
    "options",
    [
        ["{ptx}", "-o", "{cubin}", "--gpu-name=sm_100a", "--opt-level=4"],  # MAX
        ["-lineinfo", "-v", "--gpu-name=sm_90a", "{ptx}", "-o", "{cubin}"],  # Triton
        ["--output-file={cubin}", "{ptx}"],
    ],
)
def test_the_stand_in_hands_on_ptx(tmp_path, options):
    ptx, cubin = tmp_path / "a kernel.ptx", tmp_path / "a kernel.cubin"
    ptx.write_text(".version 8.6\n.target sm_90\n")
    command = [assembler(), *(option.format(ptx=ptx, cubin=cubin) for option in options)]
    assert subprocess.run(command).returncode == 0
    assert cubin.read_text() == ptx.read_text()


def test_the_stand_in_has_a_version_and_wants_files(tmp_path):
    version = subprocess.run([assembler(), "--version"], capture_output=True, text=True)
    assert "release 13.0, V13.0" in version.stdout
    nothing = subprocess.run([assembler(), "-v"], capture_output=True, text=True)
    assert nothing.returncode == 1 and "needs INPUT.ptx -o OUTPUT" in nothing.stderr
    missing = subprocess.run([assembler(), tmp_path / "no.ptx", "-o", tmp_path / "no.cubin"], capture_output=True)
    assert missing.returncode != 0


def test_what_the_user_has_set_is_left():
    assert set(toolchain_variables({})) == {*ASSEMBLER_VARIABLES, *CACHE_VARIABLES, *INDUCTOR_VARIABLES}
    left = toolchain_variables({"TRITON_PTXAS_PATH": "/mine", "MODULAR_CACHE_DIR": ""})
    assert not {"TRITON_PTXAS_PATH", "MODULAR_CACHE_DIR"} & set(left)


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """Returns a function that calls the stand-in for nvcc. The toolkit behind it has an nvcc that shows its words."""
    toolkit = tmp_path / "a toolkit"
    for folder in ("bin", "nvvm", "include"):
        (toolkit / folder).mkdir(parents=True)
    (toolkit / "include/cuda.h").write_text("")
    (toolkit / "bin/ptxas").write_text("")
    (toolkit / "bin/nvcc").write_text('#!/bin/sh\nfor word; do echo "$word"; done\n')
    (toolkit / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("EMUGPU_CACHE_DIR", str(tmp_path / "cache"))
    home = toolkit_variables({"CUDA_HOME": str(toolkit)})["CUDA_HOME"]
    assert (Path(home) / "include/cuda.h").exists() and (Path(home) / "bin/ptxas").exists()

    def words(*given):
        called = subprocess.run([f"{home}/bin/nvcc", *given], capture_output=True, text=True, check=True)
        return called.stdout.splitlines()

    return words


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("--cubin -arch=sm_90a -o", "--ptx -arch=sm_90a -o"),  # TileLang
        ("-gencode arch=compute_100f,code=sm_100a", "-gencode arch=compute_100f,code=compute_100f"),
        ("-fatbin -gencode=arch=compute_90a,code=[sm_90a,sm_90]", "--ptx -gencode=arch=compute_90a,code=compute_90a"),
        ("--generate-code arch=compute_90,code=compute_90", "--generate-code arch=compute_90,code=compute_90"),
    ],
)
def test_the_stand_in_for_nvcc_asks_for_ptx(nvcc, given, becomes):
    assert nvcc(*given.split(), "a b.cu") == [*becomes.split(), "a b.cu", "-cudart", "shared"]


@pytest.mark.parametrize("choice", ["-cudart none", "--cudart none", "-cudart=none", "--cudart=none"])
def test_the_stand_in_for_nvcc_leaves_the_choice_of_a_runtime(nvcc, choice):
    assert nvcc("x.cu", *choice.split()) == ["x.cu", *choice.split()]


@pytest.mark.parametrize("word", ["with_cudart.cu", "-DCUDART_VERSION=-cudart", "-I/opt/-cudart/include"])
def test_a_word_that_has_the_option_in_it_chooses_no_runtime(nvcc, word):
    assert nvcc(word) == [word, "-cudart", "shared"]


def test_a_toolkit_may_have_a_relative_path(nvcc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = Path(toolkit_variables({"CUDA_HOME": "a toolkit"})["CUDA_HOME"])
    assert (home / "include/cuda.h").exists()
    assert subprocess.run([home / "bin/nvcc", "x.cu"], cwd="/", capture_output=True).returncode == 0


def test_a_machine_without_a_toolkit_has_no_stand_in_for_nvcc(monkeypatch, tmp_path):
    monkeypatch.setattr("emugpu.driver.toolchains.TOOLKITS", ())
    assert toolkit_variables({"PATH": str(tmp_path), "CUDA_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
@pytest.mark.parametrize("folder", ["nosuch", "file", "x" * 5000], ids=["missing", "file", "long"])
def test_a_toolkit_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, variable, folder):
    """It is not replaced by another one, which this machine may have."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(UsageProblem) as raised:
        toolkit_variables({**os.environ, variable: folder})
    said = str(raised.value)
    assert said.startswith(f"{variable}={folder}: ") and said.endswith(f"or unset {variable}") and "\n" not in said


def test_a_named_folder_without_nvcc_is_not_replaced(tmp_path):
    """numba reads nvvm in it."""
    (tmp_path / "nvvm").mkdir()
    assert toolkit_variables({**os.environ, "CUDA_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize("words", [["exec"], ["verify"]])
def test_the_command_says_which_toolkit_there_is_not(words):
    command = [sys.executable, "-m", "emugpu", *words, "--", "true"]
    done = subprocess.run(command, env={**os.environ, "CUDA_HOME": "/nosuch"}, capture_output=True, text=True)
    line = "emugpu: error: CUDA_HOME=/nosuch: No such file or directory; name the folder of a CUDA toolkit, or unset"
    assert (done.returncode, done.stderr) == (2, f"{line} CUDA_HOME\n")


def test_ptx_is_found_by_the_names_of_its_kernels(tmp_path):
    cubin = b"\x7fELF..\0.text.first\0.text.other_1\0.nv.info\0"
    both = ".entry first(.param .u64 x) {}\n.visible .entry other_1() {}\n"
    (tmp_path / "a.ptx").write_text(".entry first() {}\n")
    assert ptx_of_cubin(cubin, tmp_path) is None
    (tmp_path / "b.ptx").write_text(both + "\0")
    assert ptx_of_cubin(cubin, tmp_path) == both
    assert ptx_of_cubin(b"\x7fELF", tmp_path) is None
    assert ptx_of_cubin(cubin, None) is None


TVM_FFI = """
import ctypes, os
library = ctypes.CDLL(os.environ["CUTE_DSL_LIBS"])
raising = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int)
said = raising(lambda kind, parts, count: print(kind.decode(), "".join(part.decode() for part in parts[:count])))
library.CuteDSLRT_TVMFFISetRaisedCudaError(said, 2)
shape = [*(4, 1, 1), *(2000, 1, 1), 2000, ctypes.c_int64(512), *[0] * 10]
place = [b"too many threads", b"program.py", 17, 1, 9]
library.CuteDSLRT_TVMFFISetRaisedCudaLaunchError(said, *shape, *place)
library.CuteDSLRT_TVMFFISetRaisedCudaError(None, 2)
loading = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda library: 702)
raising = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
said = raising(lambda kind, text: print(kind.decode(), text.decode()))
assert library.cuda_dialect_init_library_once(ctypes.byref(ctypes.c_void_p()), loading, None, said) == 702
"""


def test_what_cute_dsl_compiles_for_tvm_ffi_raises_cuda_errors(capfd):
    done = run(capfd, "b200", sys.executable, "-c", TVM_FFI)
    assert done.code == 0
    assert done.out.splitlines() == [
        "CUDADialectError CUDA Error Code: 2 cudaErrorMemoryAllocation: out of memory",
        "CUDADialectError CUDA Error Code: 9 a launch is refused: too many threads; grid 4x1x1, block 2000x1x1, 512 "
        "bytes of dynamic shared memory (program.py:17)",
        "CUDADialectError CUDA Error Code: 702 cudaErrorLaunchTimeout: the launch timed out and was terminated",
    ]


def test_cute_dsl_counts_the_emulated_gpu_by_the_bindings(capfd, monkeypatch, tmp_path):
    """The module contains NVIDIA's runtime, which fails without NVIDIA's driver."""
    (tmp_path / "cuda/bindings").mkdir(parents=True)
    (tmp_path / "cuda/bindings/runtime.py").write_text(
        "import enum\nclass cudaError_t(enum.IntEnum): cudaSuccess, cudaErrorSymbolNotFound = 0, 500\n"
        "def cudaGetDeviceCount(): return cudaError_t.cudaErrorSymbolNotFound, 0\n"
        "cudaDeviceSynchronize = cudaGetDeviceCount\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    asks = "from cuda.bindings import runtime as r; print(r.cudaGetDeviceCount(), r.cudaDeviceSynchronize())"
    done = run(capfd, "b200", sys.executable, "-c", asks)
    success = "<cudaError_t.cudaSuccess: 0>"
    assert (done.code, done.out) == (0, f"({success}, 1) ({success},)\n")


OCCUPANCY = """
import ctypes, struct
driver = ctypes.CDLL("libcuda.so.1")
context, module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
ptx = b".version 8.7\\n.target sm_100a\\n.address_size 64\\n.visible .entry empty() .reqntid 1, 1, 1 { ret; }"
driver.cuModuleLoadData(ctypes.byref(module), ptx)
driver.cuModuleGetFunction(ctypes.byref(function), module, b"empty")
cluster = ctypes.create_string_buffer(struct.pack("=I4x3I52x", 4, 2, 1, 1), 72)
launch = ctypes.create_string_buffer(struct.pack("@7IPPI", 2, 1, 1, 128, 1, 1, 0, 0, ctypes.addressof(cluster), 1))
assert driver.cuOccupancyMaxActiveClusters(ctypes.byref(count), function, launch) == 0
print(count.value)
"""


def test_cute_dsl_asks_how_many_clusters_of_more_threads_than_its_kernel_has_are_active(capfd):
    done = run(capfd, "b200", sys.executable, "-c", OCCUPANCY)
    assert (done.code, done.out) == (0, f"{148 * 32 // 2}\n")


CALLER = """.version 8.8
.target sm_90
.address_size 64
.extern .func (.param .b32 r) helper (.param .b32 a);
.visible .entry calls(.param .u64 out) { .reg .b32 %r<3>; .reg .b64 %rd<2>;
ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 r; call.uni (r), helper, (a); ld.param.b32 %r2, [r]; }
mul.wide.u32 %rd0, %r1, 4; add.u64 %rd1, %rd1, %rd0; st.global.u32 [%rd1], %r2; ret; }
"""
HELPER = """//
.version 8.8
.target sm_90
.address_size 64
.visible .func (.param .b32 r) helper (.param .b32 a) { .reg .b32 %r<2>; ld.param.b32 %r1, [a];
mad.lo.u32 %r1, %r1, %r1, 7; st.param.b32 [r], %r1; ret; }
"""


def test_the_drivers_linker_makes_one_module_of_several(capfd, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(__file__).parents[2] / "support"))
    script = f"""
        from driver_client import *
        start()
        link = c_uint64()
        call("cuLinkCreate_v2", c_uint(0), None, None, byref(link))
        add = lambda kind, text: result_of(
            "cuLinkAddData_v2", link, c_uint(kind), c_char_p(text), len(text), None, c_uint(0), None, None
        )
        image, size = c_uint64(), c_uint64()
        assert result_of("cuLinkComplete", link, byref(image), byref(size)) == "CUDA_ERROR_INVALID_VALUE"
        assert add(0, {HELPER.encode()!r}) == "CUDA_ERROR_NOT_SUPPORTED"
        assert add(1, {CALLER.encode()!r}) == "CUDA_SUCCESS"
        assert add(1, {HELPER.encode()!r}) == "CUDA_SUCCESS"
        call("cuLinkComplete", link, byref(image), byref(size))
        module = asked("cuModuleLoadData", image)
        call("cuLinkDestroy", link)
        out = asked("cuMemAlloc_v2", 4 * 32)
        launch(asked("cuModuleGetFunction", module, c_char_p(b"calls")), 1, 32, out)
        call("cuCtxSynchronize")
        assert download(out, c_int, 32) == [i * i + 7 for i in range(32)]
    """
    done = run(capfd, "b200", sys.executable, "-c", textwrap.dedent(script))
    assert done.code == 0, done.err
    assert done.log.unhandled == {"cuLinkAddData_v2 of an input other than PTX and libcudadevrt": 1}


MEETS = """.version 8.8
.target sm_90
.address_size 64
.extern .func (.param .b64 r) cudaCGGetIntrinsicHandle (.param .b32 a);
.extern .func (.param .b32 r) cudaCGSynchronize (.param .b64 a, .param .b32 b);
.visible .entry shift(.param .u64 data) { .reg .b32 %r<6>; .reg .b64 %rd<5>;
ld.param.u64 %rd1, [data]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 32, %r1;
add.u32 %r2, %r1, 32; rem.u32 %r2, %r2, 128; mul.wide.u32 %rd2, %r2, 4; add.u64 %rd2, %rd1, %rd2;
mul.wide.u32 %rd3, %r1, 4; add.u64 %rd3, %rd1, %rd3; ld.global.u32 %r3, [%rd2];
{ .param .b32 a; st.param.b32 [a], 1; .param .b64 r; call (r), cudaCGGetIntrinsicHandle, (a); ld.param.b64 %rd4, [r]; }
{ .param .b64 a; st.param.b64 [a], %rd4; .param .b32 b; st.param.b32 [b], 0; .param .b32 r;
call (r), cudaCGSynchronize, (a, b);
ld.param.b32 %r4, [r]; }
add.u32 %r3, %r3, %r4; st.global.u32 [%rd3], %r3; ret; }
"""
"""As numba-cuda's grid.sync(): all threads read a number of the next CTA, meet, and write their own."""


@pytest.mark.parametrize("word", ["clean", "racy"])
def test_the_drivers_linker_has_the_grid_barrier_of_libcudadevrt(capfd, monkeypatch, word):
    """It has it once, even if the library is given twice."""
    kernel = MEETS if word == "clean" else MEETS.replace("call (r), cudaCGS", "st.param.b32 [r], 0; // ")
    monkeypatch.setenv("PYTHONPATH", os.fspath(Path(__file__).parents[2] / "support"))
    script = f"""
        from driver_client import *
        start()
        link, image, size = c_uint64(), c_uint64(), c_uint64()
        call("cuLinkCreate_v2", c_uint(0), None, None, byref(link))
        library = 4, b"!<arch>\\ncuda_device_runtime.o/ 0 0 0 644 0"
        for kind, text in ((1, {kernel.encode()!r}), library, library):
            size = c_size_t(len(text))
            call("cuLinkAddData_v2", link, c_uint(kind), c_char_p(text), size, None, c_uint(0), None, None)
        call("cuLinkComplete", link, byref(image), byref(size))
        assert ctypes.string_at(image.value).count(b"cudaCGSynchronize(.param") == 1
        module = asked("cuModuleLoadData", image)
        data = upload((c_int * 128)(*range(128)))
        launch(asked("cuModuleGetFunction", module, c_char_p(b"shift")), 4, 32, data, cooperative=True)
        if {word == "clean"}:
            assert download(data, c_int, 128) == [(i + 32) % 128 for i in range(128)]
    """
    done = run(capfd, "b200", sys.executable, "-c", textwrap.dedent(script), check=True)
    assert done.code == 0, done.err
    assert judge(done.log, "", "", checked=True).word == word

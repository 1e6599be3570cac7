"""Functions, local memory, a module's variables, printf and assert."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_programs import cuda
from ptx_programs import STORE_R1, launch, source

from emugpu.emulator import Device, Fault, LaunchError, Module, PtxSyntaxError

TABLE = [3, 1, 4, 1]


def expected(t: int, table: list[int] = TABLE) -> int:
    """What the kernel `calls` computes in thread t."""
    local = [0] * 8
    for i in range(8):
        local[(i * 3 + t) % 8] = i * t
    total = sum((t + table[t % 4]) * i + t * table[t % 4] for i in range(t % 8))
    return (total - 1000 if total > 1000 else total) + local[t % 8]


@pytest.mark.parametrize("name", ["calls", "calls_debug"])
@pytest.mark.parametrize("schedule", ["fifo", "random"])
def test_a_program_of_nvcc_with_calls(name, schedule):
    """Optimised, and as `nvcc -G` leaves it: every variable in local memory, every function called."""
    device, module = Device(schedule=schedule, seed=1), cuda(name)
    out = device.alloc(256)
    result = device.launch(module, "calls", grid=2, block=32, arguments=[out])
    assert device.download(out, np.int32, 64).tolist() == [expected(t) for t in range(32)] * 2
    lines = sorted(result.output.splitlines())
    assert lines == [f"thread 5 of block {b}: 5 text  2.50 ff%" for b in range(2)]
    assert sorted((p.cta, p.thread) for p in result.printed) == [((b, 0, 0), (5, 0, 0)) for b in range(2)]
    assert device.download(device.symbol("counter"), np.int32, 1) == 14


def test_variables_are_set_by_name_and_keep_their_value():
    device, module = Device(), cuda("calls")
    out = device.alloc(128)
    device.write(device.symbol("table", module), np.array([2, 7, 1, 8], np.int32))
    device.write(device.symbol("scale"), np.array([0.125], np.float32))
    for _ in range(2):
        result = device.launch(module, "calls", grid=1, block=32, arguments=[out])
    assert device.download(out, np.int32, 32).tolist() == [expected(t, [2, 7, 1, 8]) for t in range(32)]
    assert "0.12 ff" in result.output
    assert device.download(device.symbol("count"), np.int32, 1) == 14
    for name, message in (("nothing", "no variable 'nothing'"), ("e", "is not clear")):
        with pytest.raises(LaunchError, match=message):
            device.symbol(name)
    with pytest.raises(Fault, match="outside every allocation"):
        device.write(device.symbol("scale"), np.zeros(1, np.float64))


def test_what_is_printed_has_an_order_and_is_not_shared_out_to_processes():
    device = Device()
    with pytest.raises(LaunchError, match="several workers: "):
        device.launch(cuda("calls"), "calls", grid=2, block=32, arguments=[device.alloc(256)], workers=2)


@pytest.mark.parametrize("name", ["calls", "calls_debug"])
def test_an_assertion_that_fails_says_which_and_who(name):
    device = Device()
    out = device.alloc(128)
    device.launch(cuda(name), "asserts", grid=1, block=32, arguments=[out, 32])
    with pytest.raises(
        Fault, match=r"calls.cu:42: .*: block: \[0,0,0\], thread: \[20,0,0\] Assertion `threadIdx.x < limit` failed\."
    ) as error:
        device.launch(cuda(name), "asserts", grid=1, block=32, arguments=[out, 20])
    assert error.value.rule == "assert"


# ---- functions by hand ----

FUNCTIONS = """
.func (.reg .b32 sum) plus (.reg .b32 a, .reg .b32 b) { add.u32 sum, a, b; ret; }
.func (.param .b32 out) twice (.param .b32 x)
{
  .reg .b32 %r<4>; .reg .pred %p<2>;
  ld.param.b32 %r1, [x];
  setp.gt.u32 %p1, %r1, 20; @%p1 bra BIG;
  call (%r2), plus, (%r1, %r1);
  st.param.b32 [out], %r2;
  ret;
  BIG: mov.b32 %r3, 1000; st.param.b32 [out+0], %r3;
  ret;
}
.func bump (.param .b64 p)
{
  .reg .b64 %rd<2>; .reg .b32 %r<2>;
  ld.param.b64 %rd1, [p]; ld.b32 %r1, [%rd1]; add.u32 %r1, %r1, 100; st.b32 [%rd1], %r1;
}
.func (.param .b32 n) forever (.param .b32 m)
{
  .reg .b32 %r<3>; .reg .pred %p<2>;
  ld.param.b32 %r1, [m]; setp.eq.u32 %p1, %r1, 0; st.param.b32 [n], %r1; @%p1 ret;
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r1; call (b), forever, (a); ld.param.b32 %r2, [b]; }
  st.param.b32 [n], %r2; ret;
}
.alias again, twice;
"""


def call(body: str) -> list[int]:
    return launch(body + STORE_R1 + "ret;", module_scope=FUNCTIONS).words(32).tolist()


def test_parameters_are_registers_or_variables_on_either_side():
    assert call("call (%r1), plus, (%r0, 5);") == [t + 5 for t in range(32)]
    twice = [2 * t if t <= 20 else 1000 for t in range(32)]
    assert call("call.uni (%r1), twice, (%r0);") == twice
    assert call("{ .param .b32 a; .param .b32 b; st.param.b32 [a+0], %r0; call (b), twice, (a); "
                "ld.param.b32 %r1, [b+0]; }") == twice  # fmt: skip
    assert call("{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r0; call (b), plus, (a, a); "
                "ld.param.b32 %r1, [b]; }") == [2 * t for t in range(32)]  # fmt: skip
    assert call("call (%r1), again, (%r0);") == twice


def test_calls_have_registers_and_labels_of_their_own():
    nested = "call (%r2), twice, (%r0); call (%r3), twice, (%r2); call (%r1), plus, (%r2, %r3);"
    f = [2 * t if t <= 20 else 1000 for t in range(32)]
    assert call(nested) == [x + (2 * x if x <= 20 else 1000) for x in f]


def test_a_guarded_call_is_made_by_some_lanes():
    body = "mov.b32 %r1, 7; setp.lt.u32 %p1, %r0, 3; @!%p1 call (%r1), plus, (%r0, 1);"
    assert call(body) == [7, 7, 7, *(t + 1 for t in range(3, 32))]


def test_a_pointer_to_a_local_variable_is_each_threads_own():
    body = """
    .local .align 8 .b8 mine[8]; .reg .b64 %p;
    mov.b64 %rd5, mine; cvta.local.u64 %rd5, %rd5; st.b32 [%rd5+4], %r0; add.s64 %rd5, %rd5, 4;
    call bump, (%rd5);
    ld.local.b32 %r1, [mine+4];
    isspacep.local %p3, %rd5; selp.b32 %r2, 1000, 0, %p3; add.u32 %r1, %r1, %r2;
    """.replace(".reg .b64 %p;", "")
    assert call(body) == [t + 1100 for t in range(32)]


def test_recursion_is_refused_where_it_happens():
    body = "mov.b32 %r2, {n}; call (%r1), forever, (%r2);"
    assert call(body.format(n=0)) == [0] * 32
    with pytest.raises(Fault, match=r"not implemented: call \(b\), forever, \(a\)"):
        call(body.format(n=1))


def test_functions_without_a_body_are_refused_where_they_are_called():
    outside = ".extern .func (.param .b64 p) elsewhere (.param .b64 n);"
    body = "{{ .param .b64 p; .param .b64 n; st.param.b64 [n], 8; {guard} call (p), elsewhere, (n); }} mov.b32 %r1, 3;"
    guard = "setp.eq.u32 %p1, %r0, 99; @%p1"
    assert launch(body.format(guard=guard) + STORE_R1 + "ret;", module_scope=outside).words(32).tolist() == [3] * 32
    with pytest.raises(Fault, match=r"not implemented: call \(p\), elsewhere"):
        launch(body.format(guard="") + "ret;", module_scope=outside)
    with pytest.raises(PtxSyntaxError, match="does not fit its declaration"):
        call("call (%r1), plus, (%r0);")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("ld.local.b32 %r1, [frame];", "local memory of 4 bytes at 0x0 is read but was never written"),
        ("st.local.b32 [frame+32], %r0;", "outside the thread's 32 bytes"),
        (
            "mul.lo.u32 %r2, %r0, 2; cvt.u64.u32 %rd5, %r2; st.local.b32 [%rd5], %r0;",
            "0x2 is not aligned to the 4 bytes",
        ),
    ],
)
def test_local_memory_has_its_limits(body, message):
    with pytest.raises(Fault, match=message):
        launch(".local .align 8 .b8 frame[32];" + body + "ret;")


def test_initial_values_of_variables():
    scope = """
    .global .align 8 .f32 grid[2][3] = {{0f3F800000, 1.5, 2.5}, {3.0}};
    .global .b64 pointers[3] = {grid, generic(grid)+8, 7}, other;
    .const .align 8 .u64 there = generic(letters);
    .const .b8 letters[4] = {65, 0x42};
    """
    body = """
    ld.global.b64 %rd2, [pointers+8]; ld.global.f32 %r1, [%rd2]; ld.const.b64 %rd3, [there]; ld.u8 %r2, [%rd3+1];
    isspacep.const %p1, %rd3; selp.b32 %r3, 1, 0, %p1; ld.global.b64 %rd4, [other]; cvt.u32.u64 %r4, %rd4;
    ld.global.f32 %r5, [grid+12]; ld.global.b64 %rd5, [pointers]; mov.b64 %rd6, grid; sub.s64 %rd5, %rd6, %rd5;
    cvt.u32.u64 %r6, %rd5; st.global.v4.b32 [%rd0], {%r1, %r2, %r3, %r4}; st.global.v2.b32 [%rd0+16], {%r5, %r6}; ret;
    """
    found = launch(body, threads=1, words=6, module_scope=scope).words(6)
    assert found[[0, 4]].view(np.float32).tolist() == [2.5, 3.0]
    assert found[[1, 2, 3, 5]].tolist() == [0x42, 1, 0, 0]


def test_a_variable_that_nobody_defines():
    with pytest.raises(LaunchError, match="names 'elsewhere', which the module does not define"):
        launch("mov.b64 %rd2, elsewhere; ret;", module_scope=".extern .global .b32 elsewhere;")
    with pytest.raises(PtxSyntaxError, match="cannot read the initial value 'sin'"):
        Module.from_text(source("ret;", ".global .f32 x = sin;"))


FORMATS = {
    "%d|%5d|%-4d|": ([7, 42, -3], "7|   42|-3  |"),
    "%u %#x %c %%": ([4294967295, 48879, 81], "4294967295 0xbeef Q %"),
    "%.3e %g": ([1234.5, 0.25], "1.234e+03 0.25"),
    "%*d %.*f": ([4, 9, 2, 2.0], "   9 %.*f"),  # seen on an H200
}


@pytest.mark.parametrize("text", FORMATS)
def test_what_printf_writes(text):
    values, wanted = FORMATS[text]
    code = ", ".join(str(b) for b in [*text.encode(), 0])
    stores, at = "", 0
    for value in values:
        size = 8 if isinstance(value, float) else 4
        at = -(-at // size) * size
        bits = int(np.float64(value).view(np.uint64)) if size == 8 else value & 0xFFFFFFFF
        stores += f"st.local.b{8 * size} [args+{at}], {bits};\n"
        at += size
    scope = f"""
    .extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
    .global .b8 text[{len(text) + 1}] = {{{code}}};
    """
    body = f"""
    .local .align 8 .b8 args[64];
    {stores}
    mov.b64 %rd2, text; mov.b64 %rd3, args; cvta.local.u64 %rd3, %rd3;
    {{
    .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd2; st.param.b64 [a], %rd3;
    call (r), vprintf, (f, a);
    }}
    ret;
    """
    assert launch(body, threads=1, module_scope=scope).result.output == wanted

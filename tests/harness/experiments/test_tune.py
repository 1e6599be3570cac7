"""``harness tune``: the candidates, the race, what is kept of it and who uses it."""

from __future__ import annotations

import json
import random
from functools import cache

import pytest
from bench_support import H200
from click.testing import CliRunner
from kernel_runs import run as emulate

import emugpu.errors
import harness.cli.main
import harness.cli.running
import harness.cli.tune
from conftest import BF16_KERNELS
from emugpu.errors import CannotRun, UsageProblem
from emugpu.processes.engine import Done
from emugpu.processes.worker_process import JobTimeout
from harness.cli.options import ConfigOptions
from harness.cli.sweep import Where
from harness.compile.catalog import KERNELS
from harness.compile.compiler import Gpu
from harness.compile.config import make_config
from harness.experiments.job import compile_together, time_round
from harness.experiments.race import race
from harness.experiments.space import GEOMETRY_OPTIONS, Candidates, geometry, space_of
from harness.experiments.tune import TuningLimits, tune
from harness.launch import tuned as store
from harness.launch.configure import configuration
from harness.launch.max_ops import op_parameters, tuned_parameters
from harness.launch.tuned import ShapeClass, class_of
from harness.paths import ROOT
from harness.problem import Shape

SHAPE = Shape(4096, 4096, 4096)
pytestmark = pytest.mark.xdist_group("the space that is tuned in")


def test_a_tile_scheduler_is_no_address_of_a_cluster():
    done = CliRunner().invoke(harness.cli.main.main, ["tune", "kernel8", "--cluster-address", "static"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "harness: error: --cluster-address 'static' is not the address of a Dask scheduler, such as "
        "tcp://10.0.0.1:8786; leave it out for processes of this machine\n"
    )


def test_a_race_finds_the_best_in_spite_of_noise():
    """Sixteen that are half a per cent to eight per cent slower, under noise of half a per cent."""
    found, runs = 0, 0
    for seed in range(40):
        noise = random.Random(seed)
        lanes = list(range(16))
        noise.shuffle(lanes)

        def measure(candidates, noise=noise):
            nonlocal runs
            for one in candidates:
                runs += 1
                yield one, (1 + 0.005 * one) * noise.lognormvariate(0, 0.005)

        found += race(lanes, measure)[0].candidate <= 1
    assert found >= 36
    assert runs / 40 < 3 * 16, "as many processes as three for each would take"


def test_those_without_a_result_are_out_and_a_tie_goes_to_the_first():
    ranking = race(["a", "b", "c"], lambda those: [(one, None if one == "a" else 1.0) for one in those])
    assert [runner.candidate for runner in ranking] == ["b", "c", "a"]
    assert ranking[0].out is None and ranking[2].out == 1
    assert [len(runner.values) for runner in ranking] == [1, 1, 0], "the one that stays needs no other round"


def test_only_what_is_asked_for_is_tried():
    found = space_of("kernel8", "sm_90a", "bf16", SHAPE, {"mma_shape": [(128, 128)], "stages": [3, 4]})
    tried = [*found.forms, *found.variants(found.forms[0])]
    assert {(config.mma_shape, config.stages) for config in tried} == {((128, 128), 3), ((128, 128), 4)}
    assert len({config.cluster for config in tried}) > 1


@pytest.mark.slow
def test_an_epilogue_of_ones_own_is_tried(monkeypatch):
    monkeypatch.setitem(KERNELS["kernel8"].space, "sm_90a", {"mma_shape": ((64, 128), (64, 256)), "stages": (3, 4)})
    file = str(ROOT / "docs" / "examples" / "my_epilogue.mojo")
    found = space_of("kernel8", "sm_90a", "bf16", SHAPE, {"epilogue": [file]})
    assert found.forms
    assert {config.fused_epilogue.file for config in (*found.forms, *found.variants(found.forms[0]))} == {file}


def test_values_that_no_configuration_has_are_refused():
    message = "no configuration of kernel8 on sm_90a has stages=98,99 and cluster=2x1 .rules for stages"
    with pytest.raises(UsageProblem, match=message):
        space_of("kernel8", "sm_90a", "bf16", SHAPE, {"stages": [98, 99], "cluster": [(2, 1)]})
    fixed = make_config("kernel8", arch="sm_90a", shape=SHAPE)
    wanted = {name: [getattr(fixed, name)] for name in GEOMETRY_OPTIONS}
    alone = space_of("kernel8", "sm_90a", "bf16", SHAPE, wanted)
    assert not alone.forms and alone.default == fixed, "the default itself has them"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", BF16_KERNELS)
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_every_kernel_has_a_space(kernel, arch):
    space = space_of(kernel, arch, "bf16", SHAPE)
    assert space.default == make_config(kernel, arch=arch, shape=SHAPE)
    assert space.default not in space.forms and len(space.forms) >= 10
    tiles = [(form.cta_group, form.mma_shape, form.ping_pong) for form in space.forms[:3]]
    assert len(set(tiles)) == 3, "each tile once before any comes with a second cluster"
    assert sum(space.refused.values()) < space.combinations
    variants = space.variants(space.forms[0])
    assert space.forms[0] not in variants and len(variants) == len(set(variants))
    assert {v.cluster for v in variants} == {space.forms[0].cluster}
    if kernel == "kernel8":
        assert len({v.scheduler for v in variants}) == 2 and len({v.raster_group for v in variants}) == 4


@pytest.mark.parametrize(("cluster", "size"), [((2, 1), (512, 512, 192)), ((4, 4), (1024, 1024, 64))])
def test_the_bytes_are_those_that_the_emulator_counts(artifacts, cluster, size):
    counters, _ = emulate(artifacts[cluster], size, "integer")
    assert geometry(artifacts[cluster].config, Shape(*size)).bytes == counters["tma_global_bytes_read"]


def test_the_busiest_sm():
    """132 SMs, 128x256 tiles of 4096x4096: 512 tiles in pairs, 66 pairs at once, so four waves."""
    count = geometry(make_config("kernel8", arch="sm_90a", mma_shape=(128, 256), cluster=(2, 1)), SHAPE)
    assert count.waves == 4 and count.busiest == 4 * 128 * 256 * 4096
    assert count.idle == pytest.approx(1 - 512 / (4 * 132))


def test_clusters_that_stay_are_all_resident():
    """Of an H200, 30 clusters of four are; 33 take two waves of all."""
    fours = [form for form in candidates().forms if form.cluster == (2, 2)]
    assert fours and {form.sms for form in fours} == {120}
    assert {form.sms for form in candidates().forms if form.cluster == (2, 1)} == {132}
    tile = {"arch": "sm_90a", "mma_shape": (128, 256), "cluster": (2, 2)}
    waves = {sms: geometry(make_config("kernel8", **tile, sms=sms), SHAPE).waves for sms in (60, 120, 132)}
    assert waves == {60: 9, 120: 5, 132: 8}, "128 clusters of tiles, for 15, 30, and twice for 33"
    dynamic = make_config("kernel8", **tile, scheduler="dynamic", sms=132)
    assert geometry(dynamic, SHAPE).waves == 5, "a cluster that comes late finds no tile"


class Pretend:
    """An engine that runs nothing. seconds: what a configuration takes, None: it has no result."""

    def __init__(self, seconds, noise=0.0):
        self.seconds, self.noise, self.random = seconds, noise, random.Random(1)
        self.runs = []
        self.error = CannotRun("a deadlock")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def map(self, function, items, limit=None, needs="CPU"):
        for item in items:
            if function is compile_together:
                yield Done(item, [])
                continue
            if function is time_round:
                self.runs += item.configs
                yield Done(item, [self._timed(config) for config in item.configs])
                continue
            self.runs.append(item.config)
            seconds = self.seconds(item.config)
            if seconds is None:
                yield Done(item, error=self.error)
                continue
            yield Done(item, self._record(item, seconds))

    def _timed(self, config):
        seconds = self.seconds(config)
        if seconds is None:
            return str(self.error)
        return {"device": H200, "timing": {"seconds": seconds * self.random.lognormvariate(0, self.noise)}}

    def _record(self, job, seconds):
        return {
            "validation": {"passed": True},
            "device": H200,
            "job": job.fields()["job"],
            "predicted": {"seconds": seconds},
            "counters": {"tma_global_bytes_read": round(seconds * 1e9), "tma_global_bytes_written": 0},
        }


@cache
def candidates() -> Candidates:
    return space_of("kernel8", "sm_90a", "bf16", SHAPE)


@cache
def fast_tile() -> tuple[int, ...]:
    return next(form.mma_shape for form in candidates().forms if form.mma_shape != candidates().default.mma_shape)


def faster_with_a_tile_and_a_depth(config):
    return 1e-3 * (0.9 if config.mma_shape == fast_tile() else 1.0) * (0.95 if config.stages == 3 else 1.0)


@pytest.mark.parametrize("device", ["gpu", "model", "emulator"])
def test_tiles_first_and_then_the_other_options(device):
    engine = Pretend(faster_with_a_tile_and_a_depth, 0.002 if device == "gpu" else 0)
    found = tune(candidates(), SHAPE, TuningLimits(device, budget=24), engine)
    assert found.best.mma_shape == fast_tile() and found.best.stages == 3
    assert found.gain == pytest.approx(1 / (0.9 * 0.95), rel=0.005)
    assert (found.verdict is not None) == (device == "gpu")
    if device == "gpu":
        assert found.verdict.verdict == "FASTER"
        assert engine.runs[-10:].count(found.best) == 5 and engine.runs[-10:].count(candidates().default) == 5


def test_what_is_within_the_noise_is_not_better_than_the_default():
    found = tune(candidates(), SHAPE, TuningLimits("gpu", budget=12), Pretend(lambda config: 1e-3, 0.01))
    assert found.best == candidates().default and found.gain == 1.0
    assert found.winner == candidates().default or found.verdict.verdict in ("SAME", "UNSURE")


def test_candidates_without_a_result_cost_nothing_but_the_default_must_have_one():
    found = tune(
        candidates(),
        SHAPE,
        TuningLimits("model", budget=8),
        Pretend(lambda c: None if c.mma_shape == fast_tile() else 1e-3),
    )
    assert "a deadlock" in found.failures.values()
    engine = Pretend(lambda c: None if c == candidates().default else 1e-3)
    with pytest.raises(CannotRun, match="the default has no result: a deadlock"):
        tune(candidates(), SHAPE, TuningLimits("model", budget=8), engine)
    assert len(engine.runs) == len(set(engine.runs)) <= 5, "at once, without a second heat"


def test_a_round_has_the_time_of_its_candidates_and_the_folder_of_its_tuning():
    """Workers are killed at their end, so the planner removes the folder."""
    rounds = []

    class Watched(Pretend):
        def map(self, function, items, limit=None, needs="CPU"):
            items = list(items)
            if function is time_round:
                rounds.extend((len(item.configs), limit, item.folder, item.folder.exists()) for item in items)
            return super().map(function, items, limit, needs)

    tune(candidates(), SHAPE, TuningLimits("gpu", budget=8, limit=10.0), Watched(lambda config: 1e-3, 0.001))
    assert rounds and all(limit == 10 * count and there for count, limit, _, there in rounds)
    assert len({folder for *_, folder, _ in rounds}) == 1 and not rounds[0][2].exists()
    tune(candidates(), SHAPE, TuningLimits("gpu", budget=8, limit=None), Watched(lambda config: 1e-3, 0.001))
    assert rounds[-1][1] is None


def test_a_quantised_output_is_not_timed():
    quantised = space_of("kernel8", "sm_90a", "bf16", SHAPE, {"out_dtype": ["e4m3"]})
    with pytest.raises(UsageProblem, match="out dtype e4m3 is not timed; use bf16, fp16 or f32, or --device emulator"):
        tune(quantised, SHAPE, TuningLimits("gpu", budget=2), Pretend(lambda config: 1e-3))


@pytest.mark.slow
def test_what_was_measured_is_kept_after_it_is_shown(monkeypatch, results_dir):
    """Also that nothing was better; a file that cannot be read is said before anything is measured."""
    engine = Pretend(lambda config: 1e-3 * (1.1 if config.mma_shape == fast_tile() else 1.0), 0.001)
    monkeypatch.setattr(Where, "engine", lambda *_: engine)
    monkeypatch.setattr(harness.cli.tune, "_device", lambda *_: ("nvidia-h200", "sm_90a"))
    words = ["tune", "kernel8", "--shape", "4096", "--budget", "6", "--json", "-"]
    result = CliRunner().invoke(harness.cli.main.main, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["gain"] == 1.0
    (entry,) = store.load(results_dir / "tuned" / "nvidia-h200.toml")
    assert entry.configuration() == candidates().default and entry.evidence["gain"] == 1.0
    assert [path.name for path in (results_dir / "tuned").iterdir()] == ["nvidia-h200.toml"], "no lock is left"
    (results_dir / "tuned" / "nvidia-h200.toml").write_text("[[tuned]")
    engine.runs.clear()
    result = CliRunner().invoke(harness.cli.main.main, words)
    assert result.exit_code == 3 and "nvidia-h200.toml cannot be read" in result.stderr and not engine.runs


@pytest.mark.slow
def test_the_best_of_a_part_of_the_space_is_not_kept(monkeypatch, results_dir):
    """Another configuration may be faster. An architecture and a type leave nothing out."""
    monkeypatch.setattr(Where, "engine", lambda *_: Pretend(lambda config: 1e-3, 0.001))
    monkeypatch.setattr(harness.cli.tune, "_device", lambda *_: ("nvidia-h200", "sm_90a"))
    words = ["tune", "kernel8", "--shape", "4096", "--budget", "2", "-c", "arch=sm_90a"]
    result = CliRunner().invoke(harness.cli.main.main, [*words, "-c", "stages=3"])
    assert result.exit_code == 0, result.output
    assert "not kept in results/tuned/: -c stages left out a part of the space" in result.stderr
    assert not (results_dir / "tuned").exists()
    assert CliRunner().invoke(harness.cli.main.main, words).exit_code == 0
    assert (results_dir / "tuned" / "nvidia-h200.toml").exists()


def test_a_job_that_takes_too_long_is_told_of_the_option():
    engine = Pretend(lambda config: None)
    engine.error = JobTimeout("it took more than 1 s")
    with pytest.raises(CannotRun, match=r"it took more than 1 s; give it more with --timeout"):
        tune(candidates(), SHAPE, TuningLimits("model", budget=2), engine)


@pytest.mark.slow
def test_the_command_line(monkeypatch, results_dir):
    monkeypatch.setattr(Where, "engine", lambda *_: Pretend(faster_with_a_tile_and_a_depth))
    words = ["tune", "kernel8", "--shape", "4096", "-c", "arch=sm_90a", "--device", "model", "--explain", "--json", "-"]
    result = CliRunner().invoke(harness.cli.main.main, words)
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["best"]["config"]["stages"] == 3 and answer["best"]["status"] == "predicted"
    assert answer["gain"] == answer["default"]["seconds"] / answer["best"]["seconds"] > 1
    assert "multiplications of the busiest SM" in result.stderr
    assert not (results_dir / "tuned").exists(), "only what was measured is kept"


def test_shapes_of_a_class_need_the_same_tiles():
    first = class_of(Shape(513, 4096, 512))
    assert first == class_of(Shape(768, 4096, 512)) == ShapeClass(513, 768, 4096, 512)
    assert not first.has(Shape(512, 4096, 512)) and not first.has(Shape(513, 4104, 512))
    for config in candidates().forms:
        assert geometry(config, Shape(768, 4096, 512)).waves == geometry(config, Shape(768 - 63, 4096, 512)).waves
    few = [
        (found.first, found.last) for found in (class_of(Shape(m, 8, 8)) for m in (1, 8, 9, 17, 64, 65, 128, 129, 257))
    ]
    assert few == [(1, 8), (1, 8), (9, 16), (17, 32), (49, 64), (65, 128), (65, 128), (129, 256), (257, 512)]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_100a", "sm_90a"])
def test_few_rows_are_tuned_among_what_the_kernel_chooses_from(arch):
    shape = Shape(8, 4096, 4096)
    forms = space_of("kernel8", arch, "bf16", shape).forms
    default = make_config("kernel8", arch=arch, shape=shape)
    assert default.swapped and default.mma_shape[1] == 16
    first = forms[:12]
    assert {form.swapped for form in first} == {True, False} and len({form.split_k for form in first}) > 2
    assert all(make_config("kernel8", arch=arch, shape=shape, split_k=split) in {default, *forms} for split in (1, 3))
    assert not any(form.swapped for form in space_of("kernel8", arch, "bf16", Shape(2048, 4096, 4096)).forms[:3])


def test_the_kernel_for_few_rows_has_a_space_of_tiles_warps_and_loads():
    """An SM has at least 32 of 4096 rows of B, and 8 of A: 40. Three other tiles have 48: two CTAs of 8 + 16 rows, and
    one of 8 + 40 or of 16 + 32.
    """
    shape = Shape(4, 4096, 4096)
    found = space_of("rows", "sm_90a", "bf16", shape)
    assert found.default == make_config("rows", arch="sm_90a", mma_shape=(8, 32), split_k=16, stages=2)
    assert {form.split_k for form in found.forms} == {4, 8, 16}
    assert {form.mma_shape for form in found.forms[:3]} == {(8, 16), (8, 40), (16, 32)}
    assert found.forms[3].mma_shape == (8, 32)  # with other warps than the default
    assert {each.stages for each in found.variants(found.default)} == {1, 3, 4}
    assert geometry(found.default, shape).busiest == 8 * 32 * 4096
    assert space_of("rows", "sm_90a", "bf16", Shape(16, 4096, 4096)).forms[0].mma_shape == (16, 40)


@pytest.mark.parametrize("device", ["model", "emulator"])
def test_the_kernel_for_few_rows_is_tuned_on_a_gpu_alone(device):
    done = CliRunner().invoke(harness.cli.main.main, ["tune", "rows", "--shape", "4,512,512", "--device", device])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1
    assert f"--device {device} knows loads by TMA only, and rows has none; use --device gpu" in done.stderr


@pytest.mark.parametrize(("kernel", "said"), [("rows", "--cluster-address"), ("kernel8", "--device model predicts")])
def test_without_a_gpu_tune_names_what_is_left(kernel, said, monkeypatch):
    monkeypatch.setattr("harness.run.runner.find_gpus", list)
    done = CliRunner().invoke(harness.cli.main.main, ["tune", kernel, "--shape", "4,512,512"])
    assert done.exit_code == 3 and done.stderr.count("\n") == 1
    assert said in done.stderr and ("--device" in done.stderr) == (kernel != "rows")


def test_the_choice_for_few_rows_is_explained_by_what_was_tuned(results_dir):
    """For its class alone, and where nothing is asked for."""
    shape = Shape(8, 512, 1024)
    default = make_config("kernel8", arch="sm_90a", shape=shape)
    best = make_config("kernel8", arch="sm_90a", mma_shape=(64, 16), swapped=True, split_k=2)
    evidence = {"gain": 1.2, "interval": [1.1, 1.3], "shape": [8, 512, 1024], "default": default.label}
    store.keep("nvidia-h200", store.entry_of(best, class_of(shape), evidence))

    def why(*words):
        result = CliRunner().invoke(harness.cli.main.main, ["explain", "kernel8", "-c", "arch=sm_90a", "--why", *words])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", Shape(3, 512, 1024)) == best
    assert f"nvidia-h200: {best.label} instead" in why("--shape", "3,512,1024")
    assert "gain 1.2, interval [1.1, 1.3]" in why("--shape", "8,512,1024") and "cycles" in why("--shape", "8,512,1024")
    assert "nvidia-h200" not in why("--shape", "17,512,1024") + why("--shape", "8,512,1024", "-c", "stages=4")


def test_what_was_faster_than_another_default_no_longer_counts(results_dir):
    evidence = {"shape": [4096, 4096, 4096], "default": "another"}
    store.keep("nvidia-h200", store.entry_of(BETTER, class_of(SHAPE), evidence))
    with pytest.warns(UserWarning, match="the default of 4096x4096x4096 was another and is now kernel8 sm_90a"):
        assert store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) is None
    words = ["explain", "kernel8", "-c", "arch=sm_90a", "--shape", "4096", "--why"]
    assert "is no longer valid: the default" in CliRunner().invoke(harness.cli.main.main, words).stdout
    evidence["default"] = candidates().default.label
    store.keep("nvidia-h200", store.entry_of(BETTER, class_of(SHAPE), evidence))
    assert store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) == BETTER


BETTER = make_config("kernel8", arch="sm_90a", mma_shape=(256, 128), cluster=(2, 2), stages=3)
ENTRY = store.entry_of(BETTER, class_of(SHAPE), {"gain": 1.1, "interval": [1.05, 1.15], "device": 'a "GPU"'})


def test_what_was_found_is_kept_and_found_again(results_dir):
    assert store.find("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) is None
    path = store.keep("nvidia-h200", ENTRY)
    other = store.entry_of(BETTER, class_of(Shape(64, 64, 64)), {})
    store.keep("nvidia-h200", other)
    assert store.find("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) == ENTRY
    assert store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) == BETTER
    assert store.find("nvidia-h200", "kernel8", "sm_90a", "fp16", SHAPE) is None
    assert store.find("nvidia-b200", "kernel8", "sm_90a", "bf16", SHAPE) is None
    newer = store.entry_of(candidates().default, class_of(SHAPE), {})
    store.keep("nvidia-h200", newer)
    assert {entry.place for entry in store.load(path)} == {newer.place, other.place}
    assert store.find("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) == newer


@pytest.mark.slow
def test_an_entry_has_the_file_of_an_own_epilogue():
    file = str(ROOT / "docs" / "examples" / "my_epilogue.mojo")
    own = make_config("kernel8", arch="sm_90a", shape=SHAPE, epilogue=file)
    [entry] = store.load(store.keep("nvidia-h200", store.entry_of(own, class_of(SHAPE), {})))
    assert entry.configuration() == own


def test_what_is_kept_is_explained_without_a_gpu(results_dir):
    store.keep("nvidia-h200", ENTRY)
    result = CliRunner().invoke(harness.cli.main.main, ["tune", "kernel8", "--shape", "4096", "--explain"])
    assert result.exit_code == 0, result.output
    assert "nvidia-h200" in result.stdout and "[1.05, 1.15]" in result.stdout
    assert "tiles it computes one after the other" in result.stdout and "(256, 128)" not in result.stdout


def test_without_a_gpu_it_is_said_what_can_be_done(results_dir, monkeypatch):
    """Also where something is kept, but for another architecture than is asked for."""
    store.keep("nvidia-h200", ENTRY)
    monkeypatch.setattr("harness.run.runner.find_gpus", lambda: [])
    monkeypatch.setattr(emugpu.errors, "find_spec", lambda package: None)  # what is missing first is a GPU
    for words in (["--shape", "512"], ["--shape", "4096", "--explain", "-c", "arch=sm_100a"]):
        result = CliRunner().invoke(harness.cli.main.main, ["tune", "kernel8", *words])
        assert (result.exit_code, result.stdout) == (3, "")
        assert "nvidia-smi lists none); --device model predicts, and --device emulator counts bytes" in result.stderr


def test_an_entry_that_the_kernel_no_longer_has_is_left_out(results_dir):
    path = store.keep("nvidia-h200", ENTRY)
    path.write_text(path.read_text().replace("stages = 3", "stages = 30"))
    with pytest.warns(UserWarning, match="is no longer valid .stages 30"):
        assert store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE) is None
    result = CliRunner().invoke(harness.cli.main.main, ["tune", "kernel8", "--shape", "4096", "--explain"])
    assert result.exit_code == 0 and "1.1" in result.stdout and "is no longer valid" in result.stdout
    path.write_text("[[tuned]")
    with pytest.raises(CannotRun, match="-c preset=default"):
        store.configuration_for("nvidia-h200", "kernel8", "sm_90a", "bf16", SHAPE)


def test_what_is_kept_in_the_project_still_counts():
    """A kernel that has changed its options, or has a better default, would leave entries behind that nothing uses."""
    kept = [entry for path in (ROOT / "results" / "tuned").glob("*.toml") for entry in store.load(path)]
    assert all(entry.configuration().kernel == entry.kernel for entry in kept)


def test_a_gpu_run_uses_it_unless_something_is_asked_for(results_dir, capsys):
    path = store.keep("nvidia-h200", ENTRY)
    h200 = Gpu("NVIDIA H200", "9.0", "", "")

    def configuration(gpu=h200, tuned=True, **asked):
        options = ConfigOptions(None if tuned else "default", {"arch": "sm_90a", **asked})
        return harness.cli.running._configuration("kernel8", SHAPE, options, gpu)

    assert configuration() == BETTER and "-c preset=default runs the default" in capsys.readouterr().err
    assert configuration(dtype="bf16") == BETTER
    assert configuration(tuned=False) == configuration(gpu=None) == candidates().default
    assert configuration(gpu=Gpu("NVIDIA H100", "9.0", "", "")) == candidates().default
    assert configuration(stages=4) == make_config("kernel8", arch="sm_90a", stages=4, shape=SHAPE)
    path.write_text(path.read_text().replace("stages = 3", "stages = 30"))
    capsys.readouterr()
    assert configuration() == candidates().default and "stages 30" in capsys.readouterr().err, "it is said"


def test_the_op_and_the_function_use_it(results_dir):
    store.keep("nvidia-h200", ENTRY)
    assert tuned_parameters(SHAPE, "bf16", "NVIDIA H200") == op_parameters(BETTER)
    assert tuned_parameters(Shape(4096, 4096, 512), "bf16", "NVIDIA H200") != op_parameters(BETTER)
    assert tuned_parameters(SHAPE, "bf16", "NVIDIA H100") == op_parameters(candidates().default)

    def chosen(tuned=True, **options):
        asked = {"dtype": "bf16", **options}
        return configuration("kernel8", "sm_90a", "nvidia-h200", SHAPE, tuned, asked)

    assert chosen() == chosen(out_dtype="bf16") == BETTER
    assert chosen(tuned=False) == candidates().default
    assert chosen(stages=4) == make_config("kernel8", arch="sm_90a", stages=4, shape=SHAPE)


def test_a_kernel_without_a_space(monkeypatch):
    monkeypatch.setitem(KERNELS["kernel8"].space, "sm_90a", {})
    with pytest.raises(UsageProblem, match="kernel8 has no space"):
        space_of("kernel8", "sm_90a", "bf16", SHAPE)

"""Many runs: the benchmark with its history and verdicts, sweeps over ranges, and tuning; and who does their jobs.

`harness.experiments.job` says what one job is, `harness.experiments.perform` does it, and an engine
(`emugpu.processes.engine`, `harness.experiments.cluster`) has many of them done.
"""

"""Many runs: the benchmark with its history and verdicts, sweeps over ranges, and tuning.

`harness.experiments.job` says what one job is, and does it. An engine (`emugpu.processes.engine`,
`harness.experiments.cluster`) spreads many of them.
"""

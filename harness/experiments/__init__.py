"""Runs many jobs: the benchmark with its history and verdicts, sweeps over ranges, and tuning.

`harness.experiments.job` defines and executes one job. An engine (`emugpu.processes.engine`,
`harness.experiments.cluster`) distributes many of them.
"""

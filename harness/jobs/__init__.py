"""Work that is done piece by piece, in other processes and on other machines: what a job is, and who does it.

`harness.jobs.job` says what one job is, `harness.jobs.perform` does it, and an engine (`harness.jobs.processes`,
`harness.jobs.cluster`) has many of them done, whatever becomes of the processes that do them.
"""

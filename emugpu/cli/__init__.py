"""The command line of the emulated GPU: options in, verdicts and exit codes out."""

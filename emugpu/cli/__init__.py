"""The command line of the emulated GPU. It reads options, and gives verdicts and exit codes."""

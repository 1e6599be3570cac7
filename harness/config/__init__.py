"""What can be asked of a kernel: the series, its configurations, named ones."""

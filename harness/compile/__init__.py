"""What can be asked of a kernel, and Mojo in, artifacts out: configurations, plans, programs, PTX."""

"""Right kernels of several compilers and faults planted in them: does `harness verify` tell them apart?"""

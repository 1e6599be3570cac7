"""Right kernels of several compilers and faults planted in them: does `emugpu verify` tell them apart?"""

"""Machine code of small graphs, written in LLVM's language.

numba types and lowers Python code of each operation, which takes seconds for a model whose gradient
takes microseconds. Here each operation is a few instructions of a loop, and operations on the same
elements share a loop. A graph with an operation that has no code here is left to numba.

Each room imports only itself and the rooms before it.

===============  =================================================================================
``unfit``        the error of graphs that are left to numba
``inverses``     inverse functions of angles and of hyperbolas
``scalars``      the instructions of operations on numbers
``arrays``       places in memory, and views of them
``flat``         a graph without graphs inside, and its values at a point
``code``         instructions on arrays: elements, registers, loops
``matrices``     operations on matrices, as loops and by BLAS
``steps``        what is computed for the elements of an array
``program``      steps in an order
``products``     products by loops or by BLAS
``factors``      factors of matrices, and solutions by triangles
``regressions``  sums of squares of a regression
``indices``      indices that are arrays
``scans``        loops over time whose steps compute numbers
``operations``   the steps of PyTensor's operations
``bounds``       indices that are known to be within an axis
``kernels``      which steps share a loop
``loops``        the loop of a kernel
``functions``    C functions of value and gradient, and of all variables
===============  =================================================================================
"""

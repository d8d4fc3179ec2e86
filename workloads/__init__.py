"""The code that runs inside the profiled process. Importing this package does not import torch.

A new workload is one module with NAME, ABOUT, ``Own``, ``check`` and ``build`` (see
``interface.Workload``), one entry in ``models.WORKLOADS``, and one test file.
"""

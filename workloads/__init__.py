"""The code that runs inside the profiled process. Importing this package does not import torch.

A new workload is one module with NAME, ABOUT, ``add_options``, ``check`` and ``build`` (see
``interface.Workload``), one entry in WORKLOADS, and one test file.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.workloads.interface import Workload
from perfctl.workloads.models import families, lstm, mnist_cnn, torchvision, unet

__all__ = ["WORKLOADS", "Workload"]

WORKLOADS: Mapping[str, Workload] = {
    mnist_cnn.NAME: mnist_cnn,
    torchvision.NAME: torchvision,
    unet.NAME: unet,
    lstm.NAME: lstm,
    families.NAME: families,
}

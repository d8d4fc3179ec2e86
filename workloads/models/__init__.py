"""The built-in workloads, by name, and models by name. Importing them does not import torch."""

from __future__ import annotations

from collections.abc import Mapping

from perfctl.workloads.interface import Workload
from perfctl.workloads.models import families, lstm, mnist_cnn, torchvision, unet

WORKLOADS: Mapping[str, Workload] = {
    mnist_cnn.NAME: mnist_cnn,
    torchvision.NAME: torchvision,
    unet.NAME: unet,
    lstm.NAME: lstm,
    families.NAME: families,
}

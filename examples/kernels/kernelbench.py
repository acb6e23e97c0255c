"""A file of KernelBench: the model, the answer, and the inputs."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 2 * features)

    def forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, 2 * features)

    def forward(self, x):
        y = torch.einsum("bi,oi->bo", x, self.linear.weight) + self.linear.bias
        return 0.5 * y * (1 + torch.erf(y * 0.7071067811865476))


def get_inputs():
    return [torch.randn(16, 96)]


def get_init_inputs():
    return [96]
